"""The pictures of pages in docs/how-to/reports.md: ``python -m benchmarks.page_pictures [FOLDER]``.

It asks the questions of that page, opens what ``simdev report`` makes of them in a real browser,
and keeps the upper part of each, light and wide or dark and narrow. Takes two minutes.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from simdev.commands import main as simdev

ROOT = Path(__file__).resolve().parents[1]


class Picture(NamedTuple):
    """What is asked before (its answer goes to ``source``), what is reported, and how it is
    looked at.
    """

    source: str
    question: str = ""
    width: int = 1280
    height: int = 900
    scheme: str = "light"


GNMT = "scenarios/gnmt-4x-rtx-2080-sequential.json"
PLAN = (
    "plan llama3-8b --cluster dgx-h100 --nodes 1 --global-batch 64 --top 12 --alike "
    "--set zero=1,2,3 --set schedule=1F1B,ZB-H1 --set cp=1 --json"
)
SEARCH = (
    "search scenarios/inception-v3-4x-cpu.json --compare greedy,annealing,m-sct --seeds 3 "
    "--budget 200 --json"
)
SWEEP = (
    f"sweep {GNMT} --set cluster.bandwidth=1GB/s,4GB/s,16GB/s "
    "--set graph.batch=64,128,256 --output sweep.csv"
)
PICTURES: Mapping[str, Picture] = {
    "report.png": Picture(GNMT, height=1010),
    "report-phone.png": Picture(GNMT, width=390, height=1010, scheme="dark"),
    "report-sweep.png": Picture("sweep.csv", SWEEP, height=1100),
    "report-plan.png": Picture("plan.json", PLAN, height=1100, scheme="dark"),
    "report-search.png": Picture("search.json", SEARCH, height=760),
}


def main(folder: Path) -> None:
    sys.path.append(str(ROOT / "tests" / "browser"))
    from playwright.sync_api import sync_playwright

    from browsers import ARGS, FRAMES, NONE, executable

    place = executable()
    if place is None:
        sys.exit(NONE)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        for name in ("scenarios", "profiles"):
            Path(work, name).symlink_to(ROOT / name)
        os.chdir(work)
        browser = playwright.chromium.launch(executable_path=place, args=list(ARGS))
        for name, picture in PICTURES.items():
            _answer(picture)
            size = {"width": picture.width, "height": picture.height}
            context = browser.new_context(viewport=size, color_scheme=picture.scheme)
            page = context.new_page()
            page.goto(Path("page.html").resolve().as_uri())
            page.locator("main > *").first.wait_for()
            page.evaluate(FRAMES)
            page.screenshot(path=folder / name)
            context.close()
            print(folder / name)


def _answer(picture: Picture) -> None:
    """Write page.html, of an answer that is asked for first where there is none."""
    if picture.question and picture.source.endswith(".json"):
        with open(picture.source, "w", encoding="utf-8") as file, redirect_stdout(file):
            simdev(shlex.split(picture.question))
    elif picture.question:
        simdev(shlex.split(picture.question))
    simdev(["report", picture.source, "-o", "page.html"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "images").resolve())
