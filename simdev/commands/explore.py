"""``simdev explore SCENARIO``: the report of a step with sliders, in a browser.

``explorer`` makes the answers; a new slider is a knob of ``explorer/knobs.py``.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

from ..ground.errors import InputError, refuse
from .options import DONE, port_problems

HELP = "the report of a step with sliders: faster links, larger memories, more microbatches"
DESCRIPTION = (
    "Opens the report of a scenario in a browser, with sliders that simulate it anew: bandwidth "
    "and latency of links, memory and speed of devices, microbatches. Serves on 127.0.0.1 alone, "
    "to who has the address that is printed; ends with Ctrl-C."
)
OPTIONS = (
    ("scenario", "SCENARIO", "a scenario, or an example's name"),
    ("--port", "N", "on 127.0.0.1 (default: any that is free)", {"default": 0}),
    ("--no-browser", "", "print the address alone"),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    refuse(port_problems(args.port))
    if args.scenario == "-":
        raise InputError("SCENARIO: must be a file or an example's name, not stdin")
    from .explorer import explorer_of
    from .explorer.door import serve_explorer
    from .server.http import require_packages

    require_packages()  # before a simulation that may take long
    explorer = explorer_of(args.scenario)

    def show(url: str, file: str) -> None:
        print(url, flush=True)
        if args.no_browser or not webbrowser.open(Path(file).as_uri()):
            print("open this address in a browser", file=sys.stderr)
        print("Ctrl-C ends it", file=sys.stderr)

    with suppress(KeyboardInterrupt):  # the way to end it
        serve_explorer(explorer, args.port, show)
    return DONE
