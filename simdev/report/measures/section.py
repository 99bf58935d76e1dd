"""Sections of a report, each with its own lines, tables, notes, facts and JSON about a step.

A new section is one class derived from ``Section``. All such classes in the modules of this folder
are sections without being listed; a class in a notebook is one, too. ``report.Report`` takes the
parts of sections in the order of their ``places``, and has a property for each figure that other
code reads by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from ...execution.period import Steady, in_step, steady_state
from ...execution.scenario import Outcome
from ...ground.errors import InputError
from ...lowering.symmetry import Symmetry
from ...nouns.trace import Trace
from ..table import Json, Table
from .spans import Window

Kind = TypeVar("Kind", bound="Section")
Facts = Iterator[tuple[str, str]]  # (name, figure)
LAST = 1000  # the place of a section that sets none
KINDS: dict[str, type[Section]] = {}
"""Every kind of section by its name."""


@dataclass(frozen=True, eq=False)
class Step:
    """The subject of a report: the outcome of running a scenario. Each section is made at its first
    use. Without ``replays`` PyTorch's allocator is not replayed.
    """

    outcome: Outcome = field(repr=False)
    replays: bool = True
    _made: dict[type, Any] = field(default_factory=dict, init=False, repr=False)

    def get(self, kind: type[Kind]) -> Kind | None:
        """The section of a kind, made once; None where it does not apply to the step."""
        if kind not in self._made:
            self._made[kind] = kind.of_step(self)
        made: Kind | None = self._made[kind]
        return made

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """The section of a kind that applies to any step. Raises KeyError for one that does not."""
        section = self.get(kind)
        if section is None:
            raise KeyError(kind.name)
        return section

    @property
    def trace(self) -> Trace:
        """The trace of all steps that were simulated."""
        return self.outcome.trace

    @cached_property
    def steady(self) -> Steady | None:
        """The period of repeated steps (None: the trace holds a single step)."""
        return steady_state(self.trace)

    @cached_property
    def window(self) -> Window:
        """The part of the trace that is measured: whole periods, or a single step."""
        return Window.of(self.trace, self.steady)

    @cached_property
    def paced(self) -> Trace:
        """The trace with its tasks as the window counts them (``period.in_step``)."""
        return in_step(self.trace, self.steady)

    @cached_property
    def step_ps(self) -> int:
        """The step time in ps; where steps repeat, their period."""
        return self.window.a_step(self.window.length_ps)

    @property
    def alike(self) -> Symmetry | None:
        """The symmetry by which devices were simulated in place of others (None: there is none)."""
        symmetry = self.outcome.symmetry
        return symmetry if isinstance(symmetry, Symmetry) else None

    @property
    def copies(self) -> int:
        """The number of devices that each device of a large model's trace represents; else 1."""
        large = self.outcome.large
        return 1 if large is None or not large.collapsed else large.copies


class Places(NamedTuple):
    """The places of a section's parts among the parts of other sections, small numbers first. None:
    the page, or the JSON, leaves the part out.
    """

    lines: int = LAST
    asides: int | None = LAST
    facts: int = LAST
    tables: int = LAST
    notes: int = LAST
    entries: int | None = LAST


class Section:
    """A section of a report. Every class derived from it is in each report whose step it applies to
    (``of_step``), with the parts below that it overrides.

    ``name`` is its key in the report's JSON; ``places`` orders its parts among other sections'.
    """

    name: ClassVar[str]
    places: ClassVar[Places] = Places()

    def __init_subclass__(cls) -> None:
        name, where = getattr(cls, "name", None), (cls.__module__, cls.__qualname__)
        if not isinstance(name, str) or not name:
            raise InputError(f"{cls.__qualname__}: a section needs a name, a text")
        # Running a notebook's cell again defines its class again, which is no error.
        known = KINDS.get(name, cls)
        if (known.__module__, known.__qualname__) != where:
            raise InputError(f'{cls.__qualname__}: there is a section "{name}" already')
        KINDS[name] = cls

    @classmethod
    def of_step(cls, step: Step) -> Self | None:
        """The section of a step, None where it does not apply."""
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        """Sentences above all tables of a terminal, for a first look."""
        return iter(())

    def asides(self) -> Iterator[str]:
        """The lines that the page shows before the notes of all sections."""
        return self.lines()

    def facts(self) -> Facts:
        """(name, figure) at the top of the page."""
        return iter(())

    def tables(self) -> Iterator[Table]:
        """The figures, for a terminal, a notebook and the page."""
        return iter(())

    def notes(self) -> Iterator[str]:
        """Sentences below the tables, which explain the figures."""
        return iter(())

    def to_json(self) -> Any:
        """The entry of the report's JSON under the section's name, ready for ``json.dumps`` (None:
        there is none).
        """
        return None

    def entries(self) -> Json:
        """The entries that the section adds to the report's JSON; nested objects are merged."""
        value = self.to_json()
        return {} if value is None else {self.name: value}


@cache
def _import_all() -> None:
    """Import the modules of this folder, which registers their sections."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def sections_of(step: Step) -> tuple[Section, ...]:
    """The sections that apply to a step, by name."""
    _import_all()
    made = (step.get(kind) for _, kind in sorted(KINDS.items()))
    return tuple(section for section in made if section is not None)


def parts_in_order(sections: tuple[Section, ...], part: str) -> Iterator[Any]:
    """The results of the method ``part`` of all sections, in the order of their places."""
    shown = [section for section in sections if getattr(section.places, part) is not None]
    shown.sort(key=lambda section: int(getattr(section.places, part)))
    return (getattr(section, part)() for section in shown)
