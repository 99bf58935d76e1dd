"""How a notebook shows the nouns of a question."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """A noun that notebooks show as small tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # By its name: reports stand on floors above all nouns.
        html: str = import_module("simdev.report.nouns").html_of(self)
        return html
