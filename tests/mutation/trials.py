"""Runs tests on mutants: a plugin of pytest, which forks a process for each mutant once tests are
collected.

First each file of tests is run on the unchanged code, to learn which lines each test reaches and
its CPU seconds. A mutant then runs the tests that reach its lines, the quickest first, up to the
first that fails. The code of its function is replaced in the forked process only, so no source is
written, nothing is imported again, and nothing remains.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import coverage
import pytest
from tqdm import tqdm

from .mutants import Mutant, code_of

BROKEN, HANGS, FAILS, PASSES = 6, 7, 8, 9  # exit codes
LONG_S = 12.0  # CPU seconds after which a test is left out
LIMIT_S, TIMES = 2.0, 10  # a test hangs after LIMIT_S + TIMES x its usual CPU seconds
MEMORY = 2 * 2**30  # bytes more than at the start
Row = dict[str, Any]
UNNOTICED = ("survived", "unreached")


def results(folder: Path) -> dict[str, Row]:
    """Results of mutants, by key: ``end`` and the ``test`` that noticed it."""
    return {row["key"]: row for row in _rows(folder / "results.jsonl")}


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


class Trials:
    """The plugin."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        paths: Sequence[str],
        mutants: Sequence[Mutant],
        most_s: float,
    ) -> None:
        self.root, self.folder, self.most_s = root, folder, most_s
        self.paths, self.mutants = paths, mutants

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Lets Hypothesis skip the shrinking of failing examples: a failure is enough."""
        from hypothesis import Phase, settings  # pytest warns where its plugin was imported before

        for test in {getattr(item, "function", None) for item in items}:
            if getattr(test, "is_hypothesis_test", False):
                test._hypothesis_internal_use_settings = settings(
                    test._hypothesis_internal_use_settings, phases=(Phase.explicit, Phase.generate)
                )

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the mutants, in place of pytest's loop over tests."""
        gc.collect()
        self.functions = [value for value in gc.get_objects() if type(value) is FunctionType]
        gc.freeze()  # so that garbage collection in a fork does not copy these objects' memory
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.learn()
        tests = [row for row in _rows(self.folder / "tests.jsonl") if row["passed"]]
        files = {self.named(item.path) for item in session.items}
        tests = [row for row in tests if row["test"] in self.items and row["file"] in files]
        tests.sort(key=lambda row: row["s"])
        for mutant in tqdm(self.mutants, "mutants", smoothing=0):
            began = time.perf_counter()
            end = self.tried(mutant, tests)
            row = {"key": mutant.key, **end, "s": round(time.perf_counter() - began, 1)}
            _append(self.folder / "results.jsonl", row)
        return True

    def learn(self) -> None:
        """Runs each file of tests that is not known yet; keeps the lines that its tests reach."""
        known = {row["file"] for row in _rows(self.folder / "tests.jsonl")}
        by_file = groupby(self.session.items, lambda item: item.path)
        files = [(self.named(path), list(items)) for path, items in by_file]
        files = [(name, items) for name, items in files if name not in known]
        for name, items in tqdm(files, "tests", disable=not files):
            _forked(partial(self.watch, name, items), self.folder / "running")

    def named(self, path: Path) -> str:
        """The name of a file of tests, with a hash of its present content."""
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        return f"{path.relative_to(self.root)} {digest}"

    def watch(self, name: str, items: list[pytest.Item]) -> int:
        """Runs tests in a forked process, and appends a row for each."""
        include = [str(self.root / path) for path in self.paths]
        lines = coverage.Coverage(data_file=None, include=include, config_file=False)
        lines.start()
        signal.signal(signal.SIGPROF, _too_long)
        rows = []
        for item, following in pairwise([*items, None]):
            lines.switch_context(item.nodeid)
            began, failed = time.process_time(), self.session.testsfailed
            signal.setitimer(signal.ITIMER_PROF, LONG_S)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            passed = self.session.testsfailed == failed
            seconds = round(time.process_time() - began, 3)
            rows.append({"file": name, "test": item.nodeid, "s": seconds, "passed": passed})
        lines.stop()
        data, reached = lines.get_data(), {row["test"]: Row() for row in rows}
        for path in data.measured_files():
            for line, tests in data.contexts_by_lineno(path).items():
                for test in filter(None, tests):
                    short = str(Path(path).relative_to(self.root))
                    reached[test].setdefault(short, []).append(line)
        for row in rows:
            _append(self.folder / "tests.jsonl", {**row, "lines": reached[row["test"]]})
        return PASSES

    def tried(self, mutant: Mutant, tests: list[Row]) -> Row:
        """The end of a mutant, and the test that caused it."""
        near = [row for row in tests if {*row["lines"].get(mutant.path, ())} & {*mutant.lines}]
        if not near:
            return {"end": "unreached"}
        chosen, total = [], 0.0
        for row in near:
            total += row["s"]
            if total <= self.most_s or not chosen:
                chosen.append(row)
        mark = self.folder / "running"
        status = _forked(partial(self.attack, mutant, chosen, mark), mark)
        ends = {PASSES: "survived", FAILS: "failed", HANGS: "hung"}
        end = ends.get(status, "crashed")
        if end == "survived":
            return {"end": end, "tests": len(chosen), "of": len(near)}
        return {"end": end, "test": mark.read_text()}

    def attack(self, mutant: Mutant, tests: Iterable[Row], mark: Path) -> int:
        """Runs tests on the mutant in a forked process, up to the first that fails."""
        mark.write_text("")
        exchange(mutant, self.root, self.functions)
        most = _size() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.signal(signal.SIGPROF, lambda *_: os._exit(HANGS))
        tests = list(tests)
        for row, following in pairwise([*tests, None]):
            mark.write_text(row["test"])
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S + TIMES * row["s"])
            item = self.items[row["test"]]
            behind = following and self.items[following["test"]]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=behind)
            if self.session.testsfailed:
                return FAILS
        return PASSES


def _too_long(*_: object) -> None:
    raise TimeoutError


def _size() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def exchange(mutant: Mutant, root: Path, functions: Iterable[FunctionType]) -> None:
    """Gives every function of the mutant's name and file the code with the fault."""
    code = code_of(mutant, root)
    same = [
        function
        for function in functions
        if function.__code__.co_qualname == mutant.name
        and function.__code__.co_filename == code.co_filename
    ]
    if not same:
        raise LookupError(f"{mutant.key}: no such function")
    for function in same:
        function.__code__ = code


def _forked(work: Callable[[], int], log: Path) -> int:
    """Does the work in a silent child process; returns its exit code, negative for a signal.

    Raises RuntimeError where the work raised an exception, with the traceback from the log.
    """
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == BROKEN:
            raise RuntimeError(log.read_text())
        return status
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os._exit(work())
    except BaseException:
        log.write_text(traceback.format_exc())
        os._exit(BROKEN)
