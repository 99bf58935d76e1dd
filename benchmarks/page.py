"""How fast the page of a report draws while a reader pans and zooms: ``python -m benchmarks.page``.

A trace of 20,000 tasks, drawn by a real browser that does not wait for the screen: what is printed
is the time from one frame to the next, all pictures of the page among it, the CPU time of a frame
in the process of the page, which other work on the machine does not lengthen, and the page's size.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks.export import ring
from simdev.execution.scenario import Outcome
from simdev.report import analyze
from simdev.report.page import Subject, page, run_data

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DEVICES = 8, 64
TASKS = 20_000
FRAMES = 120
UNBOUND = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
PANS: Mapping[str, tuple[int, str]] = {
    "pan, a tenth of the step": (8, "ArrowRight"),
    "pan, half of the step": (2, "ArrowRight"),
    "zoom": (0, "+"),
}
"""By name the presses of + before, and the key that a frame presses."""

MEASURE = """([key, count]) => new Promise((done) => {
  const canvas = document.querySelector(".rows canvas");
  const times = [];
  let last = performance.now();
  const back = { ArrowRight: "ArrowLeft", "+": "-" }[key];
  function frame(now) {
    times.push(now - last);
    last = now;
    if (times.length > count) return done(times.slice(1));
    // There and back again, so that no frame stands still at an end.
    const press = times.length % 12 < 6 ? key : back;
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: press }));
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
})"""


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
    from playwright.sync_api import sync_playwright

    from browsers import ARGS, NONE, executable

    place = executable()
    if place is None:
        sys.exit(NONE)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=place, args=[*ARGS, *UNBOUND])
        for devices in DEVICES:
            trace = ring(devices, TASKS // 2 // devices)
            html = page(run_data(Subject("ring", analyze(Outcome(trace)))))
            path = Path(folder, f"{devices}.html")
            path.write_text(html, "utf-8")
            bars = sum(map(len, (row["tasks"] for row in run_rows(trace))))
            print(f"{devices} devices, {TASKS:,} tasks, {bars:,} bars: page of {len(html):,} bytes")
            for name, (zooms, key) in PANS.items():
                opened = browser.new_page(viewport={"width": 1280, "height": 900})
                opened.goto(path.as_uri())
                canvas = opened.locator(".rows canvas").first
                canvas.wait_for()
                for _ in range(zooms):
                    canvas.press("+")
                before = cpu_seconds(browser)
                times = opened.evaluate(MEASURE, [key, FRAMES])
                cpu_ms = (cpu_seconds(browser) - before) / FRAMES * 1e3
                slow = quantiles(times, n=20)[-1]
                print(
                    f"  {name:26} median frame {median(times):5.1f} ms, 95% under {slow:5.1f} ms, "
                    f"CPU {cpu_ms:5.1f} ms a frame"
                )
                opened.close()


def cpu_seconds(browser: Browser) -> float:
    """What the processes of pages have used so far."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(process["cpuTime"] for process in processes if process["type"] == "renderer")


def run_rows(trace: object) -> list[dict[str, list[int]]]:
    from simdev.report.page.timeline import timeline

    rows: list[dict[str, list[int]]] = timeline(trace)["rows"]  # type: ignore[arg-type]
    return rows


if __name__ == "__main__":
    main()
