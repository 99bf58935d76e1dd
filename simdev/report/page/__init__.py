"""Pages of reports: one step, two side by side, a sweep, plans or a search, as one HTML file.

read_subject, read_results -> run_data, compare_data, results_data, answers_data (plain data)
                           -> page (HTML)

``commands`` (report, compare, plan, explore) and notebooks write pages. ``page`` puts the scripts
of ``assets/`` into each; a new script is a name in SCRIPTS, a new kind of page a function that
makes its data and its name in ``assets/pages.js``.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..figures.style import ALARM, COLOURS, DEVICES
from ..results import is_results, read_results, results_data
from ..whatif import WhatIf, what_ifs
from .answers import answers_data
from .ops import named_like
from .step import (
    Subject,
    compare_data,
    compare_tables,
    read_subject,
    reasons,
    rivalry,
    rivalry_json,
    run_data,
    simulated,
    verdict,
)  # fmt: skip

# A report as one HTML page that needs nothing else: data, style and script are inside, and
# nothing is fetched.
# Data are in a block of JSON whose characters are escaped where HTML or JavaScript would read
# them; large ones are packed, as base64 of gzip. The script puts them on the
# page as text only. A content security policy lets nothing run but that very script.

ASSETS = Path(__file__).parent / "assets"
STYLE = "page.css"
SCRIPTS = (
    "theme.js", "base.js", "canvas.js", "table.js", "time.js", "bars.js", "tasks.js", "gantt.js",
    "charts.js", "scatter.js", "curves.js", "goodput.js", "draws.js", "step.js", "ranked.js",
    "pages.js",
)  # fmt: skip
ASKING = "explore.js"  # the script of the only page that sends requests
LAST = "main.js"
PACKED_FROM = 1_500_000  # characters: longer data are packed
_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'"}


def page(data: Mapping[str, Any], asks: bool = False) -> str:
    """The page of ``run_data``, ``compare_data``, ``results_data`` or ``answers_data``. With
    ``asks`` it may send requests to the server that it came from, and to no other.
    """
    style = (ASSETS / STYLE).read_text("utf-8")
    names = (*SCRIPTS, *((ASKING,) if data.get("page") == "explore" else ()), LAST)
    script = _palette() + "".join((ASSETS / name).read_text("utf-8") for name in names)
    # In a function of its own, so that no name of the page clashes with a name of the script.
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    text, kind = json_for_html(data), "application/json"
    if len(text) > PACKED_FROM:
        # Without the time of packing equal data give equal bytes.
        text = b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        kind = "application/gzip"
    return Template((ASSETS / "page.html").read_text("utf-8")).substitute(
        title=escape(f"{data['title']} - simdev"),
        headline=escape(data["headline"]),
        style=style,
        style_hash=_hash(style),
        connect="'self'" if asks else "'none'",
        script=script,
        script_hash=_hash(script),
        data=text,
        data_kind=kind,
    )


def json_for_html(data: Any) -> str:
    """JSON in ASCII, without a character that could end its block, a comment or a line."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_IN_SCRIPT)  # outside of texts JSON has none of these


def _palette() -> str:
    """The colours of data in all pictures, as constants of the script."""
    colours = {"ALARM": ALARM, "SERIES": DEVICES, "COLOURS": COLOURS}
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in colours.items())


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


__all__ = [
    "Subject",
    "WhatIf",
    "answers_data",
    "compare_data",
    "compare_tables",
    "is_results",
    "named_like",
    "page",
    "read_results",
    "read_subject",
    "reasons",
    "results_data",
    "rivalry",
    "rivalry_json",
    "run_data",
    "simulated",
    "verdict",
    "what_ifs",
]
