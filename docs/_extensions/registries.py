"""What tables of the site tell, read from the code: kinds of ops, settings, methods, machines,
models.

Needs nothing of the generator, so the tests ask it too. Text between double backquotes is code.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

from bullets import plain, said_of_fields

from simdev.commands.clusters import DEVICE_HEAD, HEAD, device_rows, preset_rows
from simdev.nouns.models.large import LARGE, Transformer
from simdev.nouns.semantics import OP_CLASSES, Semantics, kinds, semantics_of, splits
from simdev.report.measures.published import KEYS, PublishedError, published_errors
from simdev.search import METHODS

TESTS = Path(__file__).resolve().parents[2] / "tests"
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and the title of its section ("": it has none)."""

    title: str
    head: Row
    rows: list[Row]


@cache
def _examples(module: str) -> dict[str, Any]:
    """The names of a module beside the tests, which hold examples and published counts."""
    return runpy.run_path(str(TESTS / f"{module}.py"))


def code(*names: str) -> str:
    """Names as code, apart by commas."""
    return ", ".join(f"``{name}``" for name in names)


# Kinds of ops


def op_kinds() -> Iterator[Table]:
    """A section a class; kinds that differ in nothing share a row.

    Axes and operations are those of the example on which the tests run the laws of every kind.
    """
    head = ("kind", "operands → outputs", "attributes", "axes of an example", "operations")
    examples = _examples("op_examples")["examples"]()
    for op_class in OP_CLASSES:
        rows = list(_kinds_of(op_class, examples))
        yield Table(op_class, head, rows)


def _kinds_of(op_class: str, examples: Mapping[str, Any]) -> Iterator[Row]:
    alike: dict[Row, list[str]] = {}
    for name, kind in kinds().items():
        if kind.op_class == op_class:
            call = examples[name]
            semantics = semantics_of(name, call.attrs, call.inputs, call.outputs)
            moves = f"{kind.operands} → {kind.outputs}" if kind.operands else kind.outputs
            cells = (moves, kind.attributes or "-", axes_text(semantics), flops_text(semantics))
            alike.setdefault(cells, []).append(name)
    for cells, names in sorted(alike.items(), key=lambda item: item[1]):
        yield code(*names), *cells


def axes_text(semantics: Semantics) -> str:
    """The axes in SOAP's words, those that stay whole last."""
    words: dict[str, list[str]] = {}
    for split in splits(semantics):
        words.setdefault(split.kind, []).append(split.axis)
    split_axes = {name for names in words.values() for name in names}
    whole = [axis.name for axis in semantics.axes if axis.name not in split_axes]
    order = ("sample", "parameter", "attribute", "reduction")
    parts = [f"{word}: {' '.join(words[word])}" for word in order if word in words]
    return "; ".join(parts + ([f"whole: {' '.join(whole)}"] if whole else []))


def flops_text(semantics: Semantics) -> str:
    """The operations as a formula of the axes."""
    terms = [
        " ".join([str(count), *(axis.name for axis in points)])
        for count, points in semantics.description.flops
    ]
    return " + ".join(term for term in terms if not term.startswith("0 ")) or "0"


# Methods of a search and their settings


def methods() -> Iterator[Table]:
    """What each method does, by its docstring, and what it needs by default."""
    head = ("method", "what it does", "preparation", "evaluations at most")
    rows = []
    for name, method in METHODS.items():
        summary = " ".join(cleandoc(method.run.__doc__ or "").split("\n\n")[0].split())
        budget = f"{method.budget:,}" if method.budget else "ends by itself"
        rows.append((code(name), summary, ", ".join(method.prepare), budget))
    yield Table("", head, rows)


def learners() -> Iterator[Table]:
    """What the methods that learn place, and what their policies can place."""
    rows = []
    for name, method in METHODS.items():
        if method.learner:
            places = f"groups of ``{method.prepare[0]}``" if method.prepare else "single ops"
            policy = "the graph that it was learned on" if method.keeps else "it keeps none"
            if method.general:
                policy = "any graph on as many devices"
            rows.append((code(name), places, policy, "yes" if method.torch else "no"))
    yield Table("", ("learner", "places", "its policy places", "PyTorch"), rows)


def settings() -> Iterator[Table]:
    """A section a learner: defaults, the paper's values, and what the docstring says of each."""
    head = ("setting", "what it is", "default", "published")
    for name, method in METHODS.items():
        if method.learner:
            yield Table(name, head, list(settings_of(method.settings)))


def settings_of(kind: type[Any]) -> Iterator[Row]:
    """The settings of a learner. Raises ValueError where its docstring and its fields differ."""
    default, published = asdict(kind()), asdict(kind.published())
    for name, text in said_of_fields(kind).items():
        yield code(name), text, plain(default[name]), plain(published[name])


# What ships


def presets() -> Iterator[Table]:
    """The machines; memory stands with the devices."""
    name, machine, devices, _, *links = HEAD
    rows = [(code(row[0]), row[1], f"{row[2]}, {row[3]}", *row[4:]) for row in preset_rows()]
    yield Table("", (name, machine, f"{devices}, memory", *links), rows)


def device_kinds() -> Iterator[Table]:
    """The kinds of device that have a datasheet; the memory's size stands with its bandwidth."""
    kind, device, single, half, _, _ = DEVICE_HEAD
    rows = [(code(row[0]), *row[1:4], f"{row[5]} at {row[4]}") for row in device_rows()]
    yield Table("", (kind, device, single, half, "memory"), rows)


def models() -> Iterator[Table]:
    """The models, beside the published counts of their parameters."""
    head = ("name", "builder and sizes", "ops", "parameters (published)", "forward, GFLOP a sample")
    rows = list(_examples("model_table")["rows"]())
    yield Table("", head, rows)


def large_models() -> Iterator[Table]:
    """The large models; inner of layers without experts, where there are such."""
    head = ("model", "layers x hidden x inner", "heads / of keys", "length", "parameters")
    yield Table("", head, [_sizes(model) for model in LARGE.values()])


def published() -> Iterator[Table]:
    """How far simulated steps of large models were from published ones."""
    head = (*KEYS, "runs", "mean error", "least", "largest")
    yield Table("", head, [_published(error) for error in published_errors()])


def _published(error: PublishedError) -> Row:
    figures = f"{error.mean:.1%}", f"{error.least:+.1%}", f"{error.largest:+.1%}"
    return *(error.matched[key] for key in KEYS), f"{error.runs}", *figures


def _sizes(model: Transformer) -> Row:
    heads = f"{model.heads}" + f" / {model.kv_heads}" * (model.kv_heads != model.heads)
    sizes = f"{model.layers} x {model.hidden}"
    if model.dense_layers or not model.experts:
        sizes += f" x {model.inner}"
    if model.experts:
        sizes += f"; experts {model.experts} of {model.expert_inner}, top {model.top_k}"
    return code(model.name), sizes, heads, f"{model.length}", f"{model.parameters():,}"


TABLES = {
    "op-kinds": op_kinds,
    "methods": methods,
    "learners": learners,
    "settings": settings,
    "presets": presets,
    "device-kinds": device_kinds,
    "models": models,
    "large-models": large_models,
    "published": published,
}
