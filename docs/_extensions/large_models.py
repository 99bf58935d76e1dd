"""A directive, ``large-models``, that writes the table of the large models that have a name."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import table

from simdev.models.large import LARGE, Transformer

HEAD = ("model", "layers x hidden x inner", "heads / of keys", "length", "parameters")


def row(model: Transformer) -> tuple[str, ...]:
    """Its sizes in the columns of HEAD; inner of layers without experts, where there are such."""
    heads = f"{model.heads}" + f" / {model.kv_heads}" * (model.kv_heads != model.heads)
    experts = f"{model.experts} of {model.expert_inner}, top {model.top_k}"
    sizes = f"{model.layers} x {model.hidden}"
    if model.dense_layers or not model.experts:
        sizes += f" x {model.inner}"
    if model.experts:
        sizes += f"; experts {experts}"
    return model.name, sizes, heads, f"{model.length}", f"{model.parameters():,}"


class LargeModels(SphinxDirective):
    """``.. large-models::``: a row a model."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """The table."""
        rows = ((f"``{name}``", *sizes) for name, *sizes in map(row, LARGE.values()))
        return [table(HEAD, rows, (1,) * len(HEAD))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("large-models", LargeModels)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
