"""One option has one name, whatever the verb, and what a verb does not know it says with a hint."""

from __future__ import annotations

from collections import defaultdict

import pytest

from commands import options
from simdev.commands import main

# Long names that two verbs use for two things, each plain beside its metavar.
TWO_MEANINGS = {"--compare", "--device", "--grid", "--nodes", "--set", "--strict"}


def test_what_is_written_is_named_output() -> None:
    for verb, action in options():
        if "-o" in action.option_strings:
            assert action.option_strings == ["-o", "--output"], verb


def test_one_name_takes_one_kind_of_value() -> None:
    takes = defaultdict(set)
    for _, action in options():
        takes[action.option_strings[-1]].add((action.metavar, str(action.choices)))
    unlike = {name for name, values in takes.items() if len(values) > 1}
    assert unlike - {"--output"} <= TWO_MEANINGS


def test_one_help_has_one_name() -> None:
    """But for the default, whose value may differ."""
    named = defaultdict(set)
    for _, action in options():
        named[str(action.help).partition(" (default")[0]].add(action.option_strings[-1])
    assert {text: names for text, names in named.items() if len(names) > 1} == {}


def test_no_option_speaks_of_words() -> None:
    with_words = [verb for verb, action in options() if "words" in str(action.help)]
    assert with_words == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sweep", "s.json", "--out", "r.csv"], "--out r.csv; did you mean --output?"),
        (["simulate", "s.json", "--pric=2"], "--pric=2; did you mean --price?"),
        (["check", "r.json", "more"], "more"),
        (["check", "r.json", "--zzz"], "--zzz"),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_is_like_it(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.endswith(f"simdev {arguments[0]}: error: unrecognized arguments: {line}\n")
