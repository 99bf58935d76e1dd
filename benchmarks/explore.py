"""How fast the sliders of ``simdev explore`` answer: ``python -m benchmarks.explore [SCENARIO]``.

The peer is the same answer with every setting lowered anew, as ``simdev simulate`` does. Then the
whole road of an answer: a key pressed on a slider in a real browser, over HTTP, until the page is
drawn.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from simdev.commands.explorer import Explorer, explorer_of

SCENARIO = "gnmt-4x-rtx-2080-parallel"
ANSWERS = 20

# From the key to the frame after which the page tells that it has an answer.
PRESS = """() => new Promise((done) => {
  const slider = document.querySelector("input[type=range]");
  const state = document.querySelector(".hint[role=status]");
  const begun = performance.now();
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - begun));
  });
  seen.observe(state, { childList: true, characterData: true, subtree: true });
  slider.value = Number(slider.value) + 1 / 16;
  slider.dispatchEvent(new Event("input"));
})"""


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else SCENARIO
    explorer, anew = explorer_of(name), explorer_of(name, anew=True)
    print(f"{name}: {len(explorer.scenario.graph.ops):,} ops")  # type: ignore[union-attr]
    for text, way in (("times given", explorer), ("lowered anew", anew)):
        times = [seconds(answer(way, k)) for k in range(ANSWERS)]
        print(f"  {text:13} median {median(times) * 1e3:6.1f} ms, longest {max(times) * 1e3:6.1f}")
    whole = in_browser(name)
    print(f"  in a browser  median {median(whole):6.1f} ms, longest {max(whole):6.1f}")


def answer(explorer: Explorer, number: int) -> Callable[[], object]:
    bandwidth = 2 ** (number / 16 - 0.5)
    return lambda: explorer.page({"bandwidth": bandwidth}, tables=False, shape=1)


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def in_browser(name: str) -> list[float]:
    """Milliseconds of each answer."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
    from playwright.sync_api import sync_playwright

    from browsers import ARGS, NONE, executable

    place = executable()
    if place is None:
        sys.exit(NONE)
    command = [sys.executable, "-m", "simdev", "explore", name, "--no-browser"]
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process,
        sync_playwright() as playwright,
    ):
        assert process.stdout is not None
        browser = playwright.chromium.launch(executable_path=place, args=list(ARGS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(process.stdout.readline().strip())
        page.locator("table").first.wait_for()
        times = []
        for _ in range(ANSWERS):
            times.append(float(page.evaluate(PRESS)))
            # until the tables have come, too
            while page.locator(".hint[role=status]", has_text="follow").count():
                page.wait_for_timeout(100)
        browser.close()
        process.terminate()
    return times


if __name__ == "__main__":
    main()
