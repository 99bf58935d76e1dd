"""What documents hold, run in processes that have only foreign packages loaded, each a fork of one:
nothing of simdev is shared, and nobody waits seconds for NumPy, Numba and PyTorch.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from waiting import HANGS

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "IPython.core.interactiveshell",
        "ipykernel.zmqshell",
        "joblib",
        "matplotlib.pyplot",
        "matplotlib_inline.backend_inline",
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
    """What went wrong with a program in a folder, else nothing."""
    return _answer(_python, source, folder)


def cells(sources: list[str], folder: Path) -> tuple[str, set[str]]:
    """What went wrong with the cells of a notebook in a folder, else nothing; and the kinds of what
    they display.
    """
    return _answer(_cells, sources, folder)


def _answer(run: Any, *question: Any) -> Any:
    """What ``run`` answers in a process of its own, which fails where that ends without."""
    mine, its = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_reply, args=(its, run, question))
    process.start()
    its.close()
    try:
        assert mine.poll(HANGS), "no end"
        return mine.recv()
    finally:
        process.kill()
        process.join()
        process.close()
        mine.close()


def _reply(answers: Any, run: Any, question: Any) -> None:
    answers.send(run(*question))


def _python(source: str, folder: Path) -> str:
    os.chdir(folder)
    sys.path[0] = ""
    sys.argv = ["-c"]
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
    except BaseException:
        return traceback.format_exc()
    return ""


def _cells(sources: list[str], folder: Path) -> tuple[str, set[str]]:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    class Shell(InteractiveShell):  # type: ignore[misc]
        def enable_gui(self, gui: str | None = None) -> None:
            """There are no windows."""

    os.chdir(folder)
    shell, kinds = Shell.instance(config=Config({"HistoryManager": {"enabled": False}})), set()
    for source in sources:
        with capture_output() as captured:
            ran = shell.run_cell(source, store_history=True)
        if not ran.success:
            error = ran.error_before_exec or ran.error_in_exec
            return f"{source}\n{''.join(traceback.format_exception(error))}", kinds
        kinds |= {kind for output in captured.outputs for kind in output.data}
        kinds |= set() if ran.result is None else {"text/plain"}
    return "", kinds
