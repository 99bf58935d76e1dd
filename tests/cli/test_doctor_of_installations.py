"""``simdev doctor``: silent about what is right, loud and exiting 3 about what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from simdev import __version__
from simdev.commands import doctor, main
from simdev.execution.scenario import Outcome, Scenario
from simdev.ground.errors import SimdevError
from worlds.traces import Span, trace_of

REQUIRES = [
    "numpy>=2.0",
    "nothing-of-that-name>=1.0",
    "nothing-of-that-name>=1.0; extra == 'gone'",
    'numpy>=2.0; extra == "there"',
    'pytest>=8; extra == "dev"',
]


def steps_take(monkeypatch: pytest.MonkeyPatch, step_ps: Callable[[str], int]) -> None:
    """Let scenarios end at once, after as many ps as each engine says, and nobody object."""

    def execute(scenario: Scenario) -> Outcome:
        return Outcome(trace_of([Span("a", 0, step_ps(scenario.engine))]))

    monkeypatch.setattr("simdev.execution.scenario.execute", execute)
    monkeypatch.setattr("simdev.execution.check.check", lambda *_: ())


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds, or is of this machine."""
    steps_take(monkeypatch, lambda engine: 33)
    gpus = {"gpus": ["G1"]}
    monkeypatch.setitem(doctor.LOOKS, "GPUs", lambda findings: findings.parts.update(gpus))


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_this_installation_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    code, parts = examined(capsys)
    assert (code, parts["ok"], parts["problems"]) == (0, True, [])
    assert parts["simdev"]["version"] == __version__
    assert parts["machine"]["cores"] >= 1
    assert parts["smoke"]["step_ps"]["simpy"] == 33
    assert parts["examples"]["scenarios"] > 30
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "ok: nothing is broken"
    assert "GPUs: G1" in lines


def test_the_engines_are_run_and_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    findings, look = doctor.Findings(), doctor.LOOKS[f"simulation of {doctor.SMOKE}"]
    look(findings)
    assert findings.parts["smoke"]["step_ps"]["simpy"] == 33_000_016_000
    monkeypatch.setattr("simdev.execution.check.check", lambda *_: ("a was late",))
    with pytest.raises(SimdevError, match=r"^the checker objects to simpy: a was late$"):
        look(findings)


def test_requirements_are_those_of_the_installation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: REQUIRES)
    code, parts = examined(capsys)
    assert code == 3
    assert parts["problems"] == ["package nothing-of-that-name (missing)"]
    assert parts["packages"]["nothing-of-that-name"] is None
    assert parts["extras"]["gone"] == {
        "installed": False,
        "packages": {"nothing-of-that-name": None},
        "install": 'pip install "simdev[gone]"',
    }
    assert parts["extras"]["there"]["installed"]
    assert "dev" not in parts["extras"]
    assert main(["doctor"]) == 3
    printed = capsys.readouterr().out
    assert '  gone   - (pip install "simdev[gone]")' in printed
    assert printed.endswith("BROKEN: package nothing-of-that-name (missing)\n")


@pytest.mark.parametrize(
    ("version", "least", "right"),
    [
        ("2.10.0", "2.9", True),
        ("2.9", "2.10", False),
        ("2.13.0+cpu", "2.13", True),
        ("3rc1", "3", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, least: str, right: bool) -> None:
    package = doctor.Package("p", least, version)
    assert package.is_right == right
    assert str(package) == (f"p {version}" if right else f"p {version} (needs {least})")


def test_engines_that_differ_are_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    steps_take(monkeypatch, len)
    code, parts = examined(capsys)
    assert code == 3
    reason = "the engines differ: simpy 5 ps, compiled 8 ps"
    assert parts["problems"] == [f"simulation of pipeline-1f1b: {reason}"]


def test_a_package_that_fails_when_it_is_imported_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("libcuda.so: no such file")

    for noun in ("GPUs", "kernels", "machine", "examples", "versions"):
        monkeypatch.setitem(doctor.LOOKS, noun, fails)
    assert main(["doctor"]) == 3
    printed = capsys.readouterr().out
    assert "BROKEN: GPUs: OSError: libcuda.so: no such file" in printed
    assert printed.count("BROKEN") == 5
