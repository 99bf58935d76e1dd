"""What a builder of graphs checks before it starts: its sizes, by its own signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec

from ..errors import InputError
from ..graph import Graph
from ..units import is_count

P = ParamSpec("P")


def model(build: Callable[P, Graph]) -> Callable[P, Graph]:
    """A builder that raises InputError for sizes that it does not have or that are no whole numbers
    >= 1.
    """
    signature = inspect.signature(build)

    @wraps(build)
    def checked(*args: P.args, **dims: P.kwargs) -> Graph:
        known = signature.parameters
        problems = [
            f"{name}: no such size; {build.__name__} has {', '.join(known)}"
            for name in dims
            if name not in known
        ]
        given = signature.bind(
            *args, **{name: value for name, value in dims.items() if name in known}
        )
        problems += _problems(given.arguments, known)
        if problems:
            raise InputError(problems)
        return build(*args, **dims)

    return checked


def _problems(
    given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> Iterator[str]:
    for name, value in given.items():
        default = parameters[name].default
        if isinstance(default, bool):
            if not isinstance(value, bool):
                yield f"{name}: must be true or false, got {value!r}"
        elif isinstance(default, str):
            if not isinstance(value, str):
                yield f"{name}: must be a name, got {value!r}"
        elif not ((value is None and default is None) or (is_count(value) and value >= 1)):
            yield f"{name}: must be a whole number >= 1, got {value!r}"
