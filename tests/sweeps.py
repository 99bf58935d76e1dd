"""Sweeps in processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def is_running(process: int) -> bool:
    """Whether a process of ``Sweeper`` is still running."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def kept(journal: Path) -> list[str]:
    """The keys of the complete lines of a journal, in their order."""
    lines = journal.read_bytes().split(b"\n")[1:-1] if journal.exists() else []
    return [json.loads(line.rpartition(b"\t")[0])["key"] for line in lines]


# Imports everything once, then runs each requested sweep in a separate fork, so that a killed sweep
# costs milliseconds, not the second that an interpreter needs to start. "point" ends the fork in
# the middle of its n-th write, sync, cut or rename.
_SERVER = """
import json, os, signal, sys
import pandas, tqdm
from simdev.commands import main
from simdev.search.sweep import engine_version
# One version for all: a source edited meanwhile would rightly count as another engine.
engine_version()
import simdev.search.sweep.sweeping, simdev.search.sweep.frame
import simdev.execution.scenario, simdev.lowering
import simdev.execution.engine.simpy_engine

def armed(point, mode):
    left = [point]
    def hooked(call):
        def hook(*arguments, **named):
            left[0] -= 1
            if left[0] == 0:
                if mode == "after":
                    call(*arguments, **named)
                elif mode == "half" and call is write:
                    write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return hook
    write = os.write
    for name in ("write", "fsync", "ftruncate", "replace"):
        setattr(os, name, hooked(getattr(os, name)))

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(request["folder"])
        sys.stdout = sys.stderr = open(os.devnull, "w")
        if request["point"]:
            import simdev.search.sweep.journal
            simdev.search.sweep.journal.SYNC_S = 0
            armed(request["point"], request["mode"])
        os._exit(main(request["arguments"]))
    sys.stdout.write(f"{child}\\n")
    sys.stdout.flush()
    status = os.waitpid(child, 0)[1]
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\\n")
    sys.stdout.flush()
"""


class Sweeper:
    """Runs ``simdev`` again and again in processes that may be killed at any moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def start(self, *arguments: str, point: int = 0, mode: str = "") -> int:
        """Starts a sweep; returns its process id."""
        request = {"arguments": arguments, "folder": str(self.folder), "point": point, "mode": mode}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._number()

    def wait(self) -> int:
        """Waits for the running sweep; returns its exit code, or minus the killing signal."""
        return self._number()

    def kill(self, process: int) -> None:
        """Kills a sweep, unless it has ended. Its id is not reused before ``wait``."""
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _number(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def __enter__(self) -> Sweeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()  # type: ignore[union-attr]
        self._server.stdout.close()  # type: ignore[union-attr]
        self._server.wait()
