"""Child processes that compare a call in one process with the same call on a Dask cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import joblib
from dask.distributed import Client
{imports}
if __name__ == "__main__":
    serial = {call}
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        with joblib.parallel_config(backend="dask"):
            results = {there}
    assert {equal}
    print("equal")
"""
ALIKE = "curve(serial) == curve(results) and serial.strategy == results.strategy"
"""An expression: two searches have equal curves and found the same strategy."""


def require_equal(
    folder: Path, imports: str, call: str, equal: str, there: str | None = None
) -> None:
    """Runs ``call`` in one process, then ``there`` (default: ``call``) on a cluster, and asserts
    ``equal``, an expression of the results ``serial`` and ``results``.
    """
    pytest.importorskip("distributed", reason="Dask is not installed")
    parts = {"imports": imports, "call": call, "there": there or call, "equal": equal}
    (folder / "run.py").write_text(PROGRAM.format(**parts))
    paths = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "search")]
    result = subprocess.run(
        [sys.executable, "run.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("equal\n")
