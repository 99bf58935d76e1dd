"""Sections of a report: one class is a section, which text, JSON, pages and traces then show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from simdev.execution.scenario import Outcome, execute, load_scenario
from simdev.ground.errors import InputError
from simdev.report import Report, analyze, run
from simdev.report.measures import section
from simdev.report.measures.section import Places, Section, Step, sections_of
from simdev.report.measures.usage import Devices
from simdev.report.page import Subject, page, run_data
from simdev.report.table import NUMBER, TEXT, Table, fields_json

SCENARIO = {
    "version": 1,
    "graph": {"model": "lenet", "batch": 64},
    "cluster": "c4140-4x-v100",
    "strategy": "data-parallel",
}
WATTS = {"v100": 300.0}


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Section]]:
    """The sections that there are, of which a test may make more."""
    sections_of(analyze(execute(load_scenario(SCENARIO))))
    monkeypatch.setattr(section, "KINDS", dict(section.KINDS))
    return section.KINDS


@pytest.fixture
def energy(kinds: dict[str, type[Section]]) -> type[Section]:
    @dataclass(frozen=True)
    class Energy(Section):
        """Joules that each device uses while it computes, by name."""

        name = "energy_j"
        places = Places(facts=55)

        joules: dict[str, float]

        @classmethod
        def of_step(cls, step: Step) -> Energy | None:
            scenario = step.outcome.scenario
            if scenario is None:
                return None
            kind = {device.name: device.kind for device in scenario.cluster.devices}
            watts = {name: WATTS.get(kind[name], 0.0) for name in kind}
            uses = step[Devices].uses
            return cls({use.name: use.busy_ps / 1e12 * watts[use.name] for use in uses})

        def lines(self) -> Iterator[str]:
            yield f"Computing takes {sum(self.joules.values()):.3f} J"

        def facts(self) -> Iterator[tuple[str, str]]:
            yield "energy", f"{sum(self.joules.values()):.3f} J"

        def tables(self) -> Iterator[Table]:
            rows = tuple(self.joules.items())
            yield Table("Energy", {"device": TEXT, "joules": NUMBER}, rows)

        def notes(self) -> Iterator[str]:
            yield "Energy is that of computing alone."

        def to_json(self) -> dict[str, float]:
            return self.joules

    return Energy


def test_a_new_section_is_one_class(energy: type[Section]) -> None:
    report = run(SCENARIO)
    joules = json.loads(json.dumps(report.to_json()))["energy_j"]
    busy = {name: device["busy_s"] for name, device in report.to_json()["devices"].items()}
    assert any(joules.values())
    for name, use in joules.items():
        assert use == pytest.approx(busy[name] * (300 if name.startswith("gpu") else 0))
    total = f"{sum(joules.values()):.3f} J"

    text = str(report)
    assert f"Computing takes {total}" in text.partition("\n\n")[0].splitlines()
    assert "Energy\n  device" in text
    assert text.endswith("Energy is that of computing alone.")
    assert "Energy is that" in report._repr_html_()

    data = run_data(Subject("lenet", report))
    names = [name for name, _ in data["facts"]]
    assert ["energy", total] in data["facts"]
    assert names.index("energy") > names.index("exposed communication")
    assert {f"Computing takes {total}", "Energy is that of computing alone."} < {*data["notes"]}
    assert data["sheets"][-1]["title"] == "Energy"
    assert "Energy is that of computing alone." in page(data)


def test_a_section_says_to_which_steps_it_applies(energy: type[Section]) -> None:
    alone = analyze(Outcome(run(SCENARIO).trace))
    assert alone.get(energy) is None
    with pytest.raises(KeyError, match="energy_j"):
        alone[energy]
    assert "energy_j" not in alone.to_json()
    assert "Energy" not in str(alone)


def test_a_section_without_a_name_of_its_own_is_refused(kinds: dict[str, type[Section]]) -> None:
    before = dict(kinds)
    with pytest.raises(InputError, match='Mine: there is a section "devices" already'):
        type("Mine", (Section,), {"name": "devices"})
    with pytest.raises(InputError, match="Mine: a section needs a name, a text"):
        type("Mine", (Section,), {})
    assert kinds == before


def test_the_sections_are_found_in_their_folder(kinds: dict[str, type[Section]]) -> None:
    assert {
        "costs", "critical_path", "devices", "engine", "host", "idle", "links", "memory",
        "pipeline", "splits", "training", "throughput",
    } <= kinds.keys()  # fmt: skip


def test_reports_are_equal_where_their_figures_are() -> None:
    scenario = load_scenario(SCENARIO)
    one, other = run(scenario), run(scenario)
    assert one == other != run(replace(scenario, price=1))
    assert one != "a report"
    assert isinstance(one, Report)


def test_fields_of_times_are_left_out_and_renamed_as_others_are() -> None:
    @dataclass(frozen=True)
    class Times:
        name: str
        busy_ps: int
        start_ps: int | None
        finish_ps: int

    times = Times("a", 10**12, None, 5 * 10**11)
    assert fields_json(times) == {"name": "a", "busy_s": 1, "start_s": None, "finish_s": 0.5}
    assert fields_json(times, "name", "start_ps", busy_ps="time_s") == {
        "time_s": 1,
        "finish_s": 0.5,
    }
