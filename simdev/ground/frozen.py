"""Containers that nouns keep: copies of those given, which nobody can change.

A frozen dataclass keeps a caller's dict as it is, so that writing into it later would change the
question under answers that are remembered. ``types.MappingProxyType`` is no way out: it shows such
changes, and cannot be pickled.

Nouns call ``freeze`` in their ``__post_init__``; profiles and datasheets (``simdev.costs``) do as
well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Holds(dict[type, bool]):
    """Whether values of a type hold others: remembered, for nouns are made by the thousand."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, (list, tuple, Mapping, Set))
        return self[kind]


_HOLDS = _Holds()


class FrozenDict(dict[K, V]):
    """A copy of a mapping that cannot be written into, nor what it holds.

    It is a dict for whoever reads it or writes JSON; ``|`` and ``copy`` give an ordinary one. It is
    hashable where its values are.
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
    """Put the frozen form in place of what a frozen dataclass was given for these fields."""
    for name in names:
        given = getattr(noun, name)
        kept = frozen(given)
        if kept is not given:
            object.__setattr__(noun, name, kept)


def _nests(values: Iterable[Any]) -> bool:
    return any(map(_HOLDS.__getitem__, map(type, values)))
