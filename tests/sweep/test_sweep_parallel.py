"""Sweeps on several workers: the same rows, whoever answered."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.ground.jobs import finished
from simdev.report.results import MEANINGS
from simdev.search.sweep import journal, sweep, sweeping
from sweeps import ROOT, kept
from waiting import HANGS, wait_until
from worlds.scenarios import TINY, bandwidths, written

joblib = pytest.importorskip("joblib", reason="more than one job needs joblib")
DOCUMENT = (ROOT / "docs" / "how-to" / "sweeps.md").read_text()
SMALL = TINY["cluster"] | {"devices": [{"name": "gpu:0", "memory": 5}, {"name": "gpu:1"}]}
SOURCES = [
    TINY,
    TINY | {"cluster": SMALL},
    TINY | {"strategy": {"a": "gpu:9"}},
    "none.json",
    load_scenario(TINY),
]


class Deadly(dict[str, Any]):
    """Ends the process that unpickles it: what a worker does that runs out of memory."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)

    def __deepcopy__(self, _: Any) -> Deadly:
        return Deadly(self)


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_rows_do_not_depend_on_the_workers(backend: str, tmp_path: Path) -> None:
    serial = sweep(SOURCES, bandwidths(6), journal=tmp_path / "serial")
    with joblib.parallel_config(backend=backend):
        parallel = sweep(SOURCES, bandwidths(6), n_jobs=2, journal=tmp_path / "parallel")
    pd.testing.assert_frame_equal(serial, parallel)
    assert sorted(kept(tmp_path / "serial")) == sorted(kept(tmp_path / "parallel"))
    assert set(serial["status"]) == {"ok", "infeasible", "failed"}


def test_who_stops_early_is_not_told_that_work_is_lost() -> None:
    """joblib warns of it, also after Ctrl-C; here a warning is an error."""
    naps = finished(time.sleep, {"short": 0.0, "long": HANGS, "longer": HANGS}, 2)
    assert next(naps) == ("short", None)
    del naps


def test_a_journal_of_many_workers_is_resumed_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = sweep(TINY, bandwidths(6), n_jobs=2, journal=tmp_path / "j")
    monkeypatch.setattr("simdev.search.sweep.sweeping.run", None)  # nothing is left to simulate
    pd.testing.assert_frame_equal(parallel, sweep(TINY, bandwidths(6), journal=tmp_path / "j"))


def test_workers_elsewhere_find_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(TINY, bandwidths(2), n_jobs=2)  # these workers stay in the folder where they began
    written(tmp_path / "graph.json", {"version": 1, **TINY["graph"]})
    written(tmp_path / "s.json", TINY | {"graph": "graph.json"})
    monkeypatch.chdir(tmp_path)
    assert list(sweep(["s.json", TINY | {"graph": "graph.json"}], n_jobs=2)["status"]) == [
        "ok",
        "ok",
    ]


def test_jobs_of_the_enclosing_configuration_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    answer, here = sweeping.answer, threading.current_thread()

    def noted(*job: Any) -> Any:
        threads.append(threading.current_thread())
        return answer(*job)

    monkeypatch.setattr(sweeping, "answer", noted)
    sweep(TINY, bandwidths(3))
    assert threads == [here] * 3
    with joblib.parallel_config(backend="threading", n_jobs=2):
        sweep(TINY, bandwidths(3))
        assert here not in threads[3:]
        sweep(TINY, bandwidths(3), n_jobs=1)
    assert len(threads) == 9
    assert threads[6:] == [here] * 3


def test_what_jobs_share_is_opened_once_by_a_worker() -> None:
    shared = journal.Shared([1])
    first, second = (pickle.loads(pickle.dumps(shared)) for _ in range(2))
    assert first is second
    assert first.value == [1]
    assert first.value is not shared.value


def test_a_scenario_that_kills_its_worker_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    deadly = TINY | {"provenance": Deadly({"x": 1})}
    sources = [TINY | {"provenance": {"n": n}} for n in range(8)]
    sources.insert(3, deadly)
    results = sweep(sources, n_jobs=2, journal=tmp_path / "j")
    assert list(results["status"]) == ["ok"] * 3 + ["failed"] + ["ok"] * 5
    assert results["reason"][3].startswith("its worker died, perhaps out of memory: ")
    assert len(kept(tmp_path / "j")) == 8
    assert results["key"][3] not in kept(tmp_path / "j")


def test_a_worker_with_another_simdev_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.search.sweep.point.engine_version", lambda: "9.9.9+00000000")
    for n_jobs in (1, 2):
        with pytest.raises(
            InputError,
            match=r"a worker runs simdev .*, this sweep 9\.9\.9\+00000000: install the same",
        ):
            sweep(TINY, n_jobs=n_jobs)


def test_a_backend_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no such cluster")

    monkeypatch.setattr("joblib.Parallel", broken)
    with pytest.raises(InputError, match=r"^n_jobs: no such cluster$"):
        sweep(TINY, n_jobs=2)


def test_without_joblib_one_job_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    assert len(sweep(TINY)) == 1
    problem = r'^n_jobs: more than one needs joblib: pip install "simdev\[parallel\]"$'
    with pytest.raises(InputError, match=problem):
        sweep(TINY, n_jobs=2)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_a_killed_sweep_with_workers_goes_on_at_once(backend: str, tmp_path: Path) -> None:
    """Its orphans hold no lock, whether they were forked or spawned."""
    written(tmp_path / "s.json", TINY)
    (tmp_path / "run.py").write_text(
        "import joblib, simdev\n"
        "if __name__ == '__main__':\n"
        f"    with joblib.parallel_config(backend='{backend}'):\n"
        "        grid = {'cluster.bandwidth': [f'{i} MB/s' for i in range(1, 2001)]}\n"
        "        simdev.sweep('s.json', grid, n_jobs=2, journal='j')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "run.py"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: len(kept(tmp_path / "j")) >= 20 or process.poll() is not None)
    orphans = [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    process.kill()
    process.wait()
    before = kept(tmp_path / "j")
    assert len(before) >= 20
    results = sweep(tmp_path / "s.json", bandwidths(30), journal=tmp_path / "j")
    assert list(results["status"]) == ["ok"] * 30
    for orphan in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
    after = kept(tmp_path / "j")
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)


def test_python_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(compile(source, "sweeps.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_the_document_tells_every_column_of_the_table() -> None:
    assert ".. code-table:: simdev.report.results.MEANINGS" in DOCUMENT
    assert list(sweep([])) == list(MEANINGS)


@pytest.mark.slow
def test_a_dask_cluster_answers_like_one_process(tmp_path: Path) -> None:
    """The cluster run of docs/how-to/sweeps.md, beside the same sweep alone."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    (source,) = re.findall(r"```python dask\n(.*?)```", DOCUMENT, re.DOTALL)
    check = (
        "    serial = simdev.sweep(question, grid)\n"
        "    assert serial.equals(results) and set(results['status']) == {'ok'}\n"
        "    assert sum(1 for _ in open('sweep.journal')) == 7\n"
        "    print('equal')\n"
    )
    (tmp_path / "cluster.py").write_text(source + check)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }
    result = subprocess.run(
        [sys.executable, "cluster.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("equal\n")


@pytest.mark.slow
def test_ray_answers_like_one_process(tmp_path: Path) -> None:
    """Ray is in no extra of the tests: this one runs where it is installed beside them."""
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "cluster.py").write_text(
        "import joblib, ray, simdev\n"
        "from ray.util.joblib import register_ray\n"
        "question = {'graph': {'model': 'lenet'}, 'cluster': 'dgx-1v', 'strategy': "
        "'data-parallel'}\n"
        "grid = {'graph.batch': [32, 64, 128], 'cluster.bandwidth': ['10 GB/s', '20 GB/s']}\n"
        "ray.init(num_cpus=2, include_dashboard=False)\n"
        "register_ray()\n"
        "with joblib.parallel_config(backend='ray', n_jobs=-1):\n"
        "    results = simdev.sweep(question, grid, journal='sweep.journal')\n"
        "assert simdev.sweep(question, grid).equals(results) and set(results['status']) == {'ok'}\n"
        "assert sum(1 for _ in open('sweep.journal')) == 7\n"
        "print('equal')\n"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }
    result = subprocess.run(
        [sys.executable, "cluster.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "equal\n" in result.stdout
