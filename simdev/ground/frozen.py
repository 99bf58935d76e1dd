"""Immutable copies of the containers that nouns are given.

A frozen dataclass would keep a caller's own dict, and writing into this dict later would change a
question whose answers are remembered. ``types.MappingProxyType`` does not help: it shows such
changes, and cannot be pickled.

Nouns call ``freeze`` in their ``__post_init__``; so do profiles and datasheets (``simdev.costs``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Holds(dict[type, bool]):
    """Whether values of a type hold other values, by type; remembered for speed."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, (list, tuple, Mapping, Set))
        return self[kind]


_HOLDS = _Holds()


class FrozenDict(dict[K, V]):
    """An immutable copy of a mapping, and of the containers in it.

    It can be read, or written as JSON, like any dict; ``|`` and ``copy`` give an ordinary dict. It
    is hashable if its values are.
    """

    __slots__ = ()

    def __init__(self, entries: Mapping[K, V] = {}, /) -> None:
        dict.__init__(self, entries)
        if _nests(self.values()):
            for key, value in self.items():
                dict.__setitem__(self, key, frozen(value))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a FrozenDict cannot be changed; dict(it) gives a copy that can")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def frozen(value: Any) -> Any:
    """A value with the mappings, lists and sets in it as FrozenDict, tuple and frozenset."""
    kind = type(value)
    if kind is FrozenDict or not _HOLDS[kind]:
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(frozen, value)) if kind is list or _nests(value) else value
    return FrozenDict(value) if isinstance(value, Mapping) else frozenset(value)


def freeze(noun: object, *names: str) -> None:
    """Replace the values of these fields of a frozen dataclass by their frozen forms."""
    for name in names:
        given = getattr(noun, name)
        kept = frozen(given)
        if kept is not given:
            object.__setattr__(noun, name, kept)


def _nests(values: Iterable[Any]) -> bool:
    return any(map(_HOLDS.__getitem__, map(type, values)))
