"""Workers: the same answers, whoever gives them."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest

import tiny_learner
from dask_runs import ALIKE, require_equal
from simdev.ground.errors import InputError
from simdev.search import search, workers
from simdev.search.trial import Budget
from simdev.search.workers import KEPT, Workers
from toys import curve, toy

joblib = pytest.importorskip("joblib", reason="more than one job needs joblib")
from joblib._parallel_backends import ThreadingBackend  # noqa: E402


class Task:
    """What calls are made on; it counts how often it is pickled."""

    pickled = 0

    def __init__(self, size: int = 3) -> None:
        self.array = np.arange(size)

    def __getstate__(self) -> dict[str, object]:
        Task.pickled += 1
        return vars(self)

    def add(self, x: int, y: int) -> int:
        return x + y + int(self.array.sum())

    def fail(self, x: int) -> int:
        if x > 0:
            raise ZeroDivisionError(f"call {x}")
        return x

    def die(self) -> None:
        os._exit(9)

    def write(self, array: np.ndarray) -> float:
        array += 1
        return float(array.sum())

    def process(self) -> int:
        return os.getpid()

    def burn(self, seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


class Truncated:
    """A task whose opening finds the end of a file."""

    def __getstate__(self) -> dict[str, object]:
        return {"file": "empty"}

    def __setstate__(self, state: object) -> None:
        raise EOFError


@pytest.mark.parametrize("n_jobs", [1, 2, -1, None])
def test_answers_come_in_order(n_jobs):
    assert Workers(Task(), n_jobs).run("add", [(i, 10) for i in range(5)]) == [
        13, 14, 15, 16, 17
    ]  # fmt: skip
    assert Workers(Task(), n_jobs).run("add", []) == []


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_an_enclosing_configuration_is_followed(backend):
    """None is what it says, 1 is this process all the same."""
    with joblib.parallel_config(backend=backend, n_jobs=2):
        answers = Workers(Task()).run("process", [()] * 2)
        assert Workers(Task(), 1).run("process", [()] * 2) == [os.getpid()] * 2
    assert all((pid == os.getpid()) == (backend == "threading") for pid in answers)


def test_one_pool_serves_all_calls_and_ends_with_the_workers():
    calls = []

    class Told(ThreadingBackend):
        """Tells when a pool begins and ends."""

        def configure(self, *args, **kwargs):
            calls.append("begins")
            return super().configure(*args, **kwargs)

        def terminate(self):
            calls.append("ends")
            super().terminate()

    joblib.register_parallel_backend("told", Told)
    with joblib.parallel_config("told", n_jobs=2):
        workers = Workers(Task(3), None)
        for number in range(3):
            assert workers.run("add", [(number, 1), (number, 2)]) == [number + 4, number + 5]
    assert calls == ["begins"]
    del workers
    assert calls == ["begins", "ends"]


def test_a_task_goes_to_a_process_once():
    """A large one is in the messages of the first round alone; a process that does not know it
    says so, and is sent it.
    """
    Task.pickled = 0
    with joblib.parallel_config(backend="threading", n_jobs=2):
        team = Workers(Task())
        sizes = []
        call = workers._call

        def watched(name, data, method, arguments):
            sizes.append(len(data))
            return call(name, data, method, arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "_call", watched)
            team.run("add", [(1, 2)] * 2)
            team.run("add", [(1, 2)] * 2)
            workers._tasks._values.clear()  # as in a process that joined later
            assert team.run("add", [(1, 2)] * 2) == [6, 6]
    assert Task.pickled == 1
    assert [size > 0 for size in sizes] == [True] * 2 + [False] * 4 + [True] * 2


def test_a_process_keeps_few_tasks():
    workers._tasks._values.clear()
    data = [pickle.dumps(Task(size)) for size in range(KEPT + 3)]
    for number, each in enumerate(data):
        assert workers._call(bytes([number]), each, "add", (0, 0)).error is None
    assert len(workers._tasks._values) == KEPT
    workers._tasks._values.clear()


def test_a_task_that_cannot_be_opened_is_not_one_that_was_not_sent():
    workers._tasks._values.clear()
    assert workers._call(b"name", b"", "add", (0, 0)).missing
    with pytest.raises(EOFError):
        workers._call(b"name", pickle.dumps(Truncated()), "add", (0, 0))


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_what_a_call_raises_is_raised(n_jobs):
    with pytest.raises(ZeroDivisionError, match="call 1"):
        Workers(Task(), n_jobs).run("fail", [(0,), (1,), (2,)])


def test_the_death_of_a_worker_is_told_in_a_line():
    with pytest.raises(InputError, match=r"^n_jobs: .+") as refused:
        Workers(Task(), 2).run("die", [(), ()])
    assert len(str(refused.value).splitlines()) == 1


def test_arrays_can_be_written_to_wherever_they_arrive():
    """joblib would map large ones from a file, to be read only."""
    large = np.zeros(300_000)
    assert Workers(Task(), 2).run("write", [(large,), (large,)]) == [300_000.0] * 2


def test_cpu_seconds_of_other_processes_are_counted_once():
    for n_jobs in (1, 2):
        budget = Budget()
        Workers(Task(), n_jobs, budget).run("burn", [(0.15,)] * 2)
        assert budget.cpu_seconds >= 0.3
    budget = Budget()
    with joblib.parallel_config(backend="threading", n_jobs=2):
        Workers(Task(), None, budget).run("burn", [(0.1,)] * 2)
    assert budget._elsewhere == 0.0  # the clock of this process has them


def test_a_search_gives_the_same_answers_by_two_processes(monkeypatch):
    tiny_learner.register(monkeypatch)
    by_jobs = [search(toy(), "tiny", 60, seed=3, n_jobs=n_jobs) for n_jobs in (1, 2)]
    curves = [curve(run) for run in by_jobs]
    assert curves[0] == curves[1]
    chances = [run.policy.weights["chance"] for run in by_jobs]
    assert (chances[0] == chances[1]).all()


@pytest.mark.slow
def test_a_dask_cluster_answers_like_one_process(tmp_path):
    imports = (
        "import pytest, tiny_learner\nfrom simdev.search import search\nfrom toys import curve, toy"
    )
    call = "search(toy(), 'tiny', 60)"  # of a method that is registered in one process alone
    registered = f"(tiny_learner.register(pytest.MonkeyPatch()), {call})[1]"
    require_equal(tmp_path, imports, registered, ALIKE, call)
