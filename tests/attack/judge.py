"""Runs mutants in a child process, which may hang, crash or exhaust memory, and judges the outcome.

A command must end with 0, 1 or 2 (``check`` and ``doctor`` also with 3), within LIMIT_S seconds of
CPU time and MEMORY bytes. If it refuses its input, it must say why in a few lines without words of
Python, write no file and print no answer. If it answers, it must print JSON where JSON was
requested. Input files must stay unchanged.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from simdev import commands
from simdev.commands import main
from simdev.ground.errors import MAX_COLUMNS, MAX_LINES, printable

from .mutate import EXTREMES, changed_file, written
from .seeds import FAMILIES

LIMIT_S, MEMORY = 10, 2 * 2**30
GUESS = "2 s"
"""The limit on simdev's own estimate of a step's simulation, in place of a minute: the estimate may
be off by a factor of three.
"""
ROUND = 400
"""The number of mutants per process, so that growing caches do not count as a mutant's memory."""
PYTHONS = re.compile(
    r"Traceback|bug in simdev|out of memory\Z|has no attribute|NoneType|not subscriptable|"
    r"unsupported operand|index out of range|invalid literal|Decimal\(|Fraction\(|object at 0x|"
    r"KeyError|<class|to unpack|zip\(\)|not iterable|unhashable|positional argument|"
    r"cannot convert|codec can't|must be real number|Expecting value|mappingproxy|np\.\w+\("
)
CODES = {"check": (0, 2, 3), "profile": (0, 2, 3)}
KEEPS = ("--journal", "sweep")
"""Words of commands that may keep files, even if they end with an error."""


@dataclass(frozen=True)
class Mutant:
    """Files by name and commands, some of them broken, and the name of their seed."""

    seed: str
    files: Mapping[str, bytes]
    commands: Sequence[Sequence[str]]

    def write(self, folder: Path) -> None:
        """Write the files."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@dataclass(frozen=True)
class Verdict:
    """The number of a mutant, the last exit code of its commands, and the fault found (``reason``,
    "" for none).
    """

    number: int
    code: int
    reason: str
    command: str = ""
    printed: str = ""


def mutant_of(family: str, seed: int, number: int, changes: int | None = None) -> Mutant:
    """The mutant of a number, always the same. With ``changes`` it has only its first changes."""
    rng = Random(f"{family} {seed} {number}")
    seeds = FAMILIES[family]()
    chosen = rng.choice(seeds)
    lines = [command.split() for command in chosen.commands]
    files = {name: written(name, content) for name, content in chosen.files.items()}
    if rng.random() < 0.15 or not files:
        at = rng.randrange(len(lines))
        lines[at] = _changed_command(rng, lines[at], list(files))
        return Mutant(chosen.name, files, lines)
    drawn = rng.choice([1, 1, 1, 2, 2, 3, 5])
    steps = drawn if changes is None else min(changes, drawn)
    name = rng.choice(list(files))
    ending = name.partition(".")[2].rpartition(".")[2]
    donors = [
        content
        for other in (seeds if rng.random() < 0.5 else (chosen,))
        for each, content in other.files.items()
        if each.endswith(ending) and isinstance(content, type(chosen.files[name]))
    ]
    files[name] = changed_file(rng, name, chosen.files[name], donors, steps)
    return Mutant(chosen.name, files, lines)


@cache
def _parser() -> argparse.ArgumentParser:
    """The parser of all verbs, made once: making it takes longer than many commands."""
    return PARSER()


PARSER = commands.parser
LENGTHY = {"--budget", "--seconds", "--jobs", "--http", "--port", "--seeds", "--chains", "--limit",
           "--grid", "--points", "--links", "--help", "--top", "--compare"}  # fmt: skip
"""Options whose values may cause minutes of work, or which other tests cover."""


@cache
def _actions(verb: str) -> tuple[argparse.Action, ...]:
    (verbs,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return tuple(
        action
        for action in verbs.choices[verb]._actions
        if action.option_strings and not LENGTHY.intersection(action.option_strings)
    )


def _changed_command(rng: Random, words: list[str], files: Sequence[str]) -> list[str]:
    """A command with an option or a value added, dropped or changed."""
    texts = [str(value) for value in EXTREMES if isinstance(value, (int, str))]
    texts = [text for text in texts if len(text) < 1000 and text != "none" and "\0" not in text]
    pool = [*texts, "2", "3", "4", "8", "a,b", "x=1", "1,2,4", "out.html", "out.csv", "no/out.json",
            "tp=0", "dp=1,2", "zero=3", "dgx-h100", "llama3-8b", "25 GB/s", *files]  # fmt: skip
    words, actions = list(words), _actions(words[0])
    at = rng.randrange(1, len(words)) if len(words) > 1 else 1
    match rng.randrange(4):
        case 0 if at < len(words) and words[at - 1] not in LENGTHY:
            words[at] = rng.choice(pool)
        case 1 if at < len(words) and words[at - 1] not in LENGTHY:
            del words[at]
        case _ if actions:
            action = rng.choice(actions)
            value = rng.choice([str(choice) for choice in action.choices or pool])
            words[at:at] = [action.option_strings[-1], value][: 1 if action.nargs == 0 else 2]
    return words


class HangsError(BaseException):
    """Raised where a command takes too long. A BaseException, so that no handler of errors catches
    it.
    """


def _stop(*_: Any) -> None:
    raise HangsError


def _ran(words: Sequence[str]) -> tuple[int, str, str]:
    """Runs a command in this process; returns (exit code, stdout, stderr)."""
    words, source = list(words), b""
    if "<" in words[1:]:
        at = words.index("<", 1)
        with suppress(OSError, IndexError):
            source = Path(words[at + 1]).read_bytes()
        words = words[:at]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(source), "utf-8")
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdin = stdin
    printed = (stream.buffer.getvalue().decode() for stream in (out, err))
    return code, *printed


def _fault(words: Sequence[str], code: int, out: str, err: str) -> str | None:
    """The fault in a command's exit code or output, None where there is none."""
    if code not in CODES.get(words[0], (0, 1, 2)):
        return f"exit code {code}"
    word = PYTHONS.search(err)
    if word:
        return f"{word[0]!r} on stderr"
    if printable(err.replace("\r", ""), lines=True) != err.replace("\r", ""):
        return "stderr steers a terminal"
    message = err.rpartition(": error: ")[2].splitlines()
    if code == 2 and not any(message):
        return "no message"
    if code == 2 and (len(message) > MAX_LINES + 2 or max(map(len, message)) > MAX_COLUMNS + 2):
        return "a long message"
    if code == 2 and out and words[0] not in ("sweep", "search", "serve"):
        return "refused, with an answer"
    if words[0] == "serve":
        out = f"[{','.join(out.splitlines())}]"
    if code < 2 and ("--json" in words or words[0] == "serve"):
        try:
            json.loads(out, parse_constant=float.fromhex)
        except ValueError as error:
            return f"no JSON: {error}"
    return None


def judged(mutant: Mutant, folder: Path) -> tuple[int, str, str, str]:
    """Runs a mutant in a folder; returns (last exit code, fault or "", command, its output)."""
    mutant.write(folder)
    os.chdir(folder)
    code = 0
    for words in mutant.commands:
        before = set(map(str, Path().rglob("*")))
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        code, out, err = _ran(words)
        fault = _fault(words, code, out, err)
        created = set(map(str, Path().rglob("*"))) - before
        if not fault and code == 2 and created and not any(word in KEEPS for word in words):
            fault = f"refused, but wrote {sorted(created)}"
        for name, content in mutant.files.items():
            # ``calibrate`` may overwrite the scenario with the fitted one.
            fitted = words[0] == "calibrate" and name == words[1] and name in words[2:]
            if not fault and not fitted and Path(name).read_bytes() != content:
                fault = f"changed {name}"
        if fault:
            return code, fault, " ".join(words), out[-2000:] + err[-6000:]
        if code > 1:
            break
    return code, "", "", ""


def _limited() -> None:
    """Limits the time and memory of this process."""
    gc.freeze()  # existing objects are no garbage of a mutant
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _stop)
    warnings.simplefilter("error")
    for place in ("simdev.nouns.scale", "simdev.files.scenario", "simdev.commands.options"):
        if hasattr(sys.modules.get(place), "LIMIT"):
            sys.modules[place].LIMIT = GUESS  # type: ignore[attr-defined]
    commands.parser = _parser


def _work(family: str, seed: int, numbers: Sequence[int], changes: int | None, pipe: int) -> None:
    """Judges mutants one after another; writes a line of JSON for each to the pipe."""
    _limited()
    # The output of C libraries bypasses Python's streams: it is caught in a file.
    with tempfile.TemporaryFile() as file:
        past, size = os.dup(file.fileno()), 0
    for stream in (1, 2):
        os.dup2(past, stream)
    for number in numbers:
        mutant = mutant_of(family, seed, number, changes)
        folder = Path(tempfile.mkdtemp(prefix="mutant"))
        # A loop in a compiled kernel runs no signal handler: then this limit kills the process.
        spent = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 3 * LIMIT_S
        resource.setrlimit(resource.RLIMIT_CPU, (spent, resource.RLIM_INFINITY))
        try:
            verdict = judged(mutant, folder)
        except HangsError:
            verdict = -1, f"takes longer than {LIMIT_S} s", "", ""
        except Exception as error:
            verdict = -1, f"{type(error).__name__} escapes: {error}", "", ""
        signal.setitimer(signal.ITIMER_PROF, 0)
        if os.fstat(past).st_size > size and not verdict[1]:
            text = os.pread(past, 4000, size).decode(errors="replace")
            verdict = verdict[0], "writes past stderr", "", text
        size = os.fstat(past).st_size
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
        os.write(pipe, json.dumps(verdict).encode() + b"\n")


def _forked(
    family: str, seed: int, numbers: Sequence[int], changes: int | None
) -> Iterator[tuple[int, str, str, str]]:
    """The verdicts of ``judged`` on mutants in a child, up to a mutant that kills the child."""
    source, pipe = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(source)
            _work(family, seed, numbers, changes, pipe)
        finally:
            os._exit(0)
    os.close(pipe)
    with os.fdopen(source) as lines:
        yield from map(tuple, map(json.loads, lines))
    status = os.waitpid(child, 0)[1]
    if status:
        yield -1, f"its process died of {status}", "", ""


def verdicts(
    family: str, seed: int, numbers: Iterable[int], changes: int | None = None
) -> Iterator[Verdict]:
    """The verdict on each mutant, in the order of ``numbers``."""
    rest = list(numbers)
    while rest:
        done = 0
        for fields in _forked(family, seed, rest[:ROUND], changes):
            yield Verdict(rest[done], *fields)
            done += 1
        rest = rest[done:]


def warm(family: str) -> list[str]:
    """Runs every unchanged seed in this process, so that forked processes share the imports and
    compiled kernels of its commands. Returns the faults of invalid seeds.
    """
    problems, home = [], os.getcwd()
    for each in FAMILIES[family]():
        files = {name: written(name, content) for name, content in each.files.items()}
        whole = Mutant(each.name, files, [command.split() for command in each.commands])
        with tempfile.TemporaryDirectory() as folder:
            problems += _refusals(whole, Path(folder))
            os.chdir(home)
    return problems


def _refusals(whole: Mutant, folder: Path) -> Iterator[str]:
    whole.write(folder)
    os.chdir(folder)
    for words in whole.commands:
        code, out, err = _ran(words)
        fault = _fault(words, code, out, err)
        if code > 1 or fault:
            yield f"{whole.seed}: {' '.join(words)}: {fault}: {code}: {err}"


def require_sound(family: str, count: int, seed: int = 0) -> None:
    """Asserts that seeds are valid, that none of ``count`` mutants is faulty, and that some are
    answered and some refused.
    """
    assert warm(family) == []
    judged_all = list(verdicts(family, seed, range(count)))
    assert [verdict for verdict in judged_all if verdict.reason] == []
    answered = sum(verdict.code < 2 for verdict in judged_all)
    assert count // 20 < answered < count - count // 20
