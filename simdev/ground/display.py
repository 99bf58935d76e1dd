"""How a notebook shows the nouns of a question."""

from __future__ import annotations

from .registry import provided


class Displayed:
    """A noun that notebooks show as small tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = provided("html_of")(self)  # the report is a floor above all nouns
        return html
