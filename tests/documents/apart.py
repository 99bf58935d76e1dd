"""Runs the code of documents in forks of a process that has only other packages loaded: no state of
simdev is shared, and the import of NumPy, Numba and PyTorch costs seconds only once.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from waiting import HANGS

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "joblib",
        "matplotlib.pyplot",
        "networkx",
        "numba",
        "numpy",
        "pandas",
        "pydantic",
        "scipy.optimize",
        "simpy",
        "torch",
        "tqdm",
    ]
)


def python(source: str, folder: Path) -> str:
    """Runs a program in a folder; returns its error, or "". Fails where its process ends without an
    answer.
    """
    mine, its = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(its, source, folder))
    process.start()
    its.close()
    try:
        assert mine.poll(HANGS), "no end"
        return str(mine.recv())
    finally:
        process.kill()
        process.join()
        process.close()
        mine.close()


def _run(answers: Connection, source: str, folder: Path) -> None:
    os.chdir(folder)
    sys.path[0] = ""
    sys.argv = ["-c"]
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
        wrong = ""
    except BaseException:
        wrong = traceback.format_exc()
    answers.send(wrong)
