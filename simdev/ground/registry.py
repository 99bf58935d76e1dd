"""Names by which a lower floor reaches objects that a higher floor provides.

A module imports only from the floors below its own. Where it needs more, ``simdev/__init__.py``
registers the higher floor's "module:attribute" under a name, and that object is imported when
somebody first asks for it. Three names are registered so: the table that a notebook shows of a noun
(``Displayed`` asks for it), the reader of profiles (asked by ``simdev.costs.ladder``), and the
methods that learn (asked by ``simdev.search.methods``).
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

_PATHS: dict[str, str] = {}


def provide(name: str, path: str) -> None:
    """Register a "module:attribute" under a name."""
    _PATHS[name] = path


def provided(name: str) -> Any:
    """The object registered under a name. Raises KeyError for a name that nobody registered."""
    return resolve_name(_PATHS[name])


class Displayed:
    """A noun that notebooks show as small tables."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = provided("html_of")(self)  # the report is a floor above all nouns
        return html
