"""Numbers at the ends of what can be written, in every option that takes one: done or refused in a
few lines that name the option, and nothing is left half written.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from commands import actions
from simdev.commands import main, parser
from simdev.ground.errors import MAX_COLUMNS
from simdev.ground.jobs import MOST, finished
from worlds.scenarios import written

DIGITS = "9" * 100_000
NO_NUMBERS = ("nan", "inf", "-inf", "1_000", "٣", "²", "0x10", "", "1/3", "True", "1e400", DIGITS)
"""Texts that are a number nowhere; Python reads some of them as one."""
NO_WHOLE = ("1e-400", "-0.0", "1e3", "1e18", "1.5")
WHOLE = ("0", "-1", "1" + "0" * 399, str(2**63), str(2**63 - 1), str(10**18))
LINES = 7
PARSER = cache(parser)
"""Made once: to make it takes as long as what most of these commands do."""

NEEDED = {
    "simulate": ["--model=llama3.2-1b", "--cluster=dgx-h100", "--dp=8"],
    "sweep": ["s.json"],
    "report": ["s.json", "-o", "r.html"],
    "explore": ["no.json"],
    "compare": ["s.json", "s.json"],
    "plan": ["llama3.2-1b", "--cluster=dgx-h100", "--global-batch=8", "--set=tp=1", "--set=pp=3"],
    "search": ["s.json", "--method", "single"],
    "train": ["gdp", "--family", "none", "-o", "p.safetensors"],
    "family": ["none", "-o", "graphs"],
    "pipeline": ["--stages=2", "--microbatches=2", "--forward=1ms", "--backward=1ms"],
    "import": ["g.json", "-o", "x.json"],
    "profile": ["no.py:model"],
    "serve": [],
    "clusters": ["dgx-h100"],
    "capture": ["s.py", "--cluster=dgx-h100", "--world=1"],
}
"""The other arguments of each verb, with which it ends soon, well or not."""
QUANTITIES = ("TIME", "SIZE", "RATE", "$", "N,N", "N,...", "S")
NAMED = {
    "--host-bandwidth": "", "--message-latency": "", "--replicas": "", "--size": "length=",
    "--dim": "batch=", "--warm": "annealing:",
}  # fmt: skip
"""Options of texts that are or hold a number, and what stands before it."""


def numeric(*metavars: str) -> Iterator[tuple[str, str, str]]:
    """(verb, option, what stands before the number) of options that take a number."""
    for verb, action in actions():
        name = (action.option_strings or [""])[-1]
        if action.metavar in metavars or (metavars == QUANTITIES and name in NAMED):
            yield verb, name, NAMED.get(name, "")


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    graph = {"nodes": [{"id": "a", "time": 1}], "links": []}
    Path("s.py").write_text("")
    written(Path("g.json"), {"directed": True, "multigraph": False} | graph)
    monkeypatch.setattr("simdev.commands.parser", PARSER)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return here


def ended(verb: str, option: str, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and the message without the usage before it."""
    before = set(os.listdir())
    # The last one counts, so that what is needed may hold the option too.
    try:
        code = main([verb, *NEEDED[verb], f"{option}={text}"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    usage, _, message = capsys.readouterr().err.rpartition(f"simdev {verb}: error: ")
    assert "Traceback" not in usage + message
    lines = message.splitlines()
    assert code in (0, 1, 2), (option, text[:40], message)
    assert len(lines) <= LINES, lines
    assert all(len(line) <= MAX_COLUMNS for line in lines), lines
    if code == 2:
        assert lines
        assert set(os.listdir()) == before
    return code, message


def refused(verb: str, option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = ended(verb, option, text, capsys)
    assert (code, option.lstrip("-") in message) == (2, True), (
        verb,
        option,
        text[:40],
        code,
        message,
    )


@pytest.mark.parametrize("verb", NEEDED)
def test_what_is_no_number_is_refused_by_the_option(
    verb: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for of_verb, option, before in [*numeric(*QUANTITIES), *numeric("N")]:
        if of_verb == verb:
            for text in NO_NUMBERS:
                refused(verb, option, before + text, capsys)
    for of_verb, option, _ in numeric("N"):
        if of_verb == verb:
            for text in NO_WHOLE:
                refused(verb, option, text, capsys)


@pytest.mark.parametrize("verb", NEEDED)
def test_whole_numbers_of_any_size_are_taken_or_refused(
    verb: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for of_verb, option, _ in numeric("N"):
        if of_verb == verb and option != "--jobs":
            usual = ended(verb, option, "1", capsys)
            for text in WHOLE:
                code, message = ended(verb, option, text, capsys)
                assert code < 2 or option.lstrip("-") in message or (code, message) == usual, (
                    option,
                    message,
                )


def test_every_verb_with_numbers_is_tried() -> None:
    assert {verb for verb, _, _ in [*numeric("N"), *numeric(*QUANTITIES)]} == NEEDED.keys()


@pytest.mark.parametrize("verb", ["sweep", "search", "train"])
def test_processes_have_an_end(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (0, MOST + 1, 2**63, 10**399):
        _, message = ended(verb, "--jobs", str(count), capsys)
        assert "--jobs" in message, message


@pytest.mark.parametrize(("count", "workers"), [(MOST, 3), (2, 2), (-1, -1), (None, None)])
def test_no_process_is_started_for_nothing(
    count: int | None, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def pool(
        call: Callable[[int], int], items: dict[str, int], n_jobs: int | None, _: list[str]
    ) -> Iterator[tuple[str, int]]:
        started.append(n_jobs)
        yield from [(key, call(item)) for key, item in items.items()]

    monkeypatch.setattr("simdev.ground.jobs._pool", pool)
    assert dict(finished(abs, {"a": -1, "b": 2, "c": 3}, count)) == {"a": 1, "b": 2, "c": 3}
    assert started == [workers]
