"""SIGTERM ends a verb in one line, with its children, whatever it is at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from commands import ROOT
from waiting import HANGS, wait_until

BEGIN = """
import sys, time, signal, subprocess
from simdev import commands
from simdev.__main__ import main

def work(*_):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    sys.stdout.write(f"{child.pid}\\n")
    sys.stdout.flush()
    WORK

commands.parser = work
sys.exit(main())
"""


WORKS = {
    "sleeps": "time.sleep(3600)",
    "computes": "while True: pass",
    "loses it in a destructor": "\n    ".join(
        (
            "class Slow:",
            "    def __del__(self): time.sleep(2)",
            "while True: Slow()",
        )
    ),
    "keeps all exceptions": "\n    ".join(
        (
            "while True:",
            "        try: time.sleep(1)",
            "        except Exception: pass",
        )
    ),
    "does not look": "\n    ".join(
        (
            "from simdev.files import replacing",
            "signal.signal(signal.SIGTERM, lambda *_: None)",
            "with replacing('out.json'): time.sleep(3600)",
        )
    ),
}
"""Work of the main thread when SIGTERM comes; the last never hears of it, amid a file."""


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_sigterm_ends_in_one_line_and_takes_the_children_along(work: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN.replace("WORK", work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=HANGS)
    assert (process.returncode, error) == (143, "terminated\n")
    assert not list(tmp_path.iterdir())
    wait_until(lambda: not psutil.pid_exists(child))


def test_an_interrupt_is_still_one() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN.replace("WORK", "time.sleep(3600)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        # Shells let what they start in the background ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) == 130
    os.kill(child, signal.SIGKILL)
    assert process.communicate()[1] == "interrupted\n"
