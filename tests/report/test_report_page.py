"""The page of a report: it holds everything, fetches nothing, and no name in it is ever markup; and
the command.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad.scenarios import CLUSTER, scenario
from simdev.commands import main
from simdev.execution.scenario import Outcome, load_scenario
from simdev.nouns.taskgraph import Buffers, Resource, Rows, TaskGraph, Tasks
from simdev.nouns.trace import Trace
from simdev.report import BLAMES, analyze, run
from simdev.report.figures.style import ALARM, COLOURS, DEVICES
from simdev.report.page import (
    ASSETS,
    SCRIPTS,
    Subject,
    WhatIf,
    compare_data,
    json_for_html,
    page,
    results_data,
    run_data,
)
from worlds.scenarios import pipelined
from worlds.traces import HOSTILE, Held, Span, hostile, trace_of

ROOT = Path(__file__).parents[2]
EVIL = (
    *HOSTILE, "</script><script>alert(1)</script>", "<!--<script>", "-->", "]]>",
    "<img src=x onerror=alert(2)>",
    "a\u2028b\u2029c", '" onmouseover="alert(3)', "'; alert(4); '", "${alert(5)}", "`x`", "\\",
    "\\u003cscript>", "\u202eevil",
)  # fmt: skip


class Tags(HTMLParser):
    """The tags of a page, the text of its data block, and of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.now = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.now = dict(attributes).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.now = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.now] = self.texts.get(self.now, "") + data


LLAMA = pipelined({"model": "llama2-7b"}, tp=8, microbatches=2)


def evil() -> Subject:
    spans = [
        Span(name, i * 10, i * 10 + 10, EVIL[i % 2], at=i % 2, kind=name)
        for i, name in enumerate(EVIL)
    ]
    return Subject(
        "</title><script>alert(6)</script>",
        analyze(
            Outcome(trace_of(spans, EVIL[:2], capacity=[1, -1], buffers=[Held(EVIL[8], 0, 3)]))
        ),
    )


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (lambda: evil(), "A saved run does not tell links"),
        (
            lambda: Subject("large", run(load_scenario(LLAMA))),
            "Links of a large model are not tried",
        ),
    ],
)
def test_a_page_tells_why_links_are_not_made_faster(
    subject: Callable[[], Subject], why: str
) -> None:
    gains = [WhatIf("queue", "all", None, 1, 0.0)]
    (sheet,) = [
        one for one in run_data(subject(), gains)["sheets"] if one["title"].startswith("What if")
    ]
    assert why in sheet["note"]


EVIL_RESULTS = pd.DataFrame(
    {
        "scenario": EVIL,
        EVIL[7]: range(len(EVIL)),
        "status": ["ok"] * len(EVIL),
        "step_time_s": [1.0] * len(EVIL),
    }
)


PAGES = {
    "run": lambda: run_data(evil()),
    "compare": lambda: compare_data(evil(), Subject("b", analyze(Outcome(hostile())))),
    "results": lambda: results_data(EVIL_RESULTS, EVIL[7]),
}


@pytest.mark.parametrize("kind", PAGES)
def test_hostile_names_stay_text(kind: str) -> None:
    data = PAGES[kind]()
    text = page(data)
    found = Tags(text)
    assert [tag for tag, _ in found.tags] == [
        "html", "head", "meta", "meta", "meta", "meta", "title", "style",
        "body", "header", "h1", "p", "noscript", "p", "main", "div", "script", "script",
    ]  # fmt: skip
    assert json.loads(found.texts["data"]) == json.loads(json.dumps(data))
    assert not set("<>&'\u2028\u2029") & set(found.texts["data"])


@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_data_in_a_page_are_read_back_as_they_were(data: Any) -> None:
    text = json_for_html(data)
    assert json.loads(text) == data
    assert text.isascii()
    assert not set("<>&'") & set(text)


def test_a_page_runs_its_own_script_and_fetches_nothing() -> None:
    text = page(PAGES["run"]())
    found = Tags(text)
    policy = (
        next(
            values["content"]
            for tag, values in found.tags
            if tag == "meta" and "http-equiv" in values
        )
        or ""
    )
    for name in ("script", "style"):
        digest = b64encode(sha256(found.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert not any({"src", "href"} & values.keys() for _, values in found.tags)
    script = found.texts["script"]
    assert not re.search(
        (
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new "
            r"Function|fetch\(|XMLHttp"
        ),
        script,
    )


def ring(count: int) -> Trace:
    """Ops on eight devices, each followed by a transfer: as many spans as ``count``, in rows of
    compute and queues.
    """
    half = count // 2
    names = tuple(f"gpu:{d}" for d in range(8))
    op = np.arange(half)
    device = op % 8
    zeros = np.zeros(2 * half, np.int64)
    queues = [[d] for d in device.tolist()] + [[8 + d] for d in device.tolist()]
    ops = [f"layer_{i // 8}/block/op_{i}" for i in op.tolist()]
    sent = [f"{name}:0>gpu:{(i + 1) % 8}" for i, name in enumerate(ops)]
    tasks = Tasks(
        (*ops, *sent), ("forward",) * half + ("transfer",) * half,
        np.concatenate((op, op)), zeros, np.concatenate((device, device)), np.concatenate((device,
        (device + 1) % 8)),
        np.full(2 * half, 500_000_000), zeros, zeros, zeros, np.repeat([0, 4096], half),
        zeros.astype(bool),
        Rows.of(queues), Rows.of([] for _ in queues),
        Rows.of([[half + i] for i in range(half)] + [[]] * half),
    )  # fmt: skip
    resources = tuple(
        Resource(prefix + name, device=d)
        for prefix in ("", "send ")
        for d, name in enumerate(names)
    )
    buffers = Buffers(
        tuple(f"op_{i}:0" for i in op),
        device,
        np.full(half, 4096),
        np.full(half, 3),
        op,
        Rows.of([[half + i] for i in range(half)]),
    )
    start = np.concatenate((op // 8 * 600_000_000, op // 8 * 600_000_000 + 500_000_000))
    return Trace(
        TaskGraph(tasks, resources, buffers, names, np.full(8, -1)),
        start,
        start + tasks.duration,
        "hand-made",
    )


def test_a_page_of_20_000_spans_stays_under_5_mb() -> None:
    assert len(page(run_data(Subject("ring", analyze(Outcome(ring(20_000))))))) < 5_000_000


# The command.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(scenario(strategy={"a": "gpu:0", "b": "gpu:1"}))
    (tmp_path / "oom.json").write_text(
        scenario(cluster=CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}]})
    )
    return tmp_path


def data_of(path: Path) -> Any:
    return json.loads(Tags(path.read_text("utf-8")).texts["data"])


def test_report_of_scenario_run_and_results(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "s.json", "--save", "run.json.gz"]) == 0
    assert main(["sweep", "s.json", "oom.json", "--output", "r.csv"]) == 0
    capsys.readouterr()
    for source, kind in (
        ("s.json", "run"),
        ("run.json.gz", "run"),
        ("r.csv", "results"),
        ("oom.json", "run"),
    ):
        assert main(["report", source, "-o", "page.html"]) == 0
        told = data_of(here / "page.html")
        assert (told["page"], told["source"]) == (kind, source)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == f"{told['headline']}; page.html\n"
    assert main(["report", "s.json", "-o", "short.html", "--no-what-if"]) == 0
    assert not any("faster" in sheet["title"] for sheet in data_of(here / "short.html")["sheets"])


def test_the_same_question_gives_the_same_page(here: Path) -> None:
    pages = []
    for out in ("a.html", "b.html"):
        assert main(["report", "s.json", "-o", out]) == 0
        pages.append((here / out).read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("source", "out", "told"),
    [
        ("none.json", "p.html", "none.json: no such file"),
        ("none.csv", "p.html", "none.csv: no such file"),
        ("broken.json", "p.html", "broken.json: line 1, column 2: not JSON"),
        ("list.json", "p.html", "list.json: must be an object (a scenario), got a list"),
        ("bad.csv", "p.html", "bad.csv: is no table of simdev sweep"),
        ("s.json", "p.pdf", "--output: p.pdf: the name must end in .html"),
        ("s.json", "no/p.html", "--output: cannot write no/p.html: no such file or directory"),
        ("torn.json", "p.html", "torn.json: "),
    ],
)
def test_what_cannot_be_reported_is_one_message_and_no_file(
    here: Path, capsys: pytest.CaptureFixture[str], source: str, out: str, told: str
) -> None:
    (here / "broken.json").write_text("{")
    (here / "list.json").write_text("[]")
    (here / "bad.csv").write_text("a,b\n1,2\n")
    (here / "torn.json").write_text('{"version": 1, "tasks": {}, "spans": {}}')
    before = {path.name for path in here.iterdir()}
    assert main(["report", source, "-o", out]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(told)
    assert {path.name for path in here.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "told"), [("[]", "must be an object"), ("{", "line 1, column 2"), ("", "empty")]
)
def test_what_is_wrong_with_stdin_is_told(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    told: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["report", "-", "-o", "p.html"]) == 2
    assert capsys.readouterr().err.startswith(f"<stdin>: {told}")
    assert not (here / "p.html").exists()


def test_a_page_never_takes_the_place_of_an_input(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (here / "s.json").read_text()
    (here / "s.html").write_text(text)
    (here / "graph.html").write_text(json.dumps({"version": 1, **json.loads(text)["graph"]}))
    (here / "named.json").write_text(json.dumps(json.loads(text) | {"graph": "graph.html"}))
    assert main(["report", "s.html", "-o", "s.html"]) == 2
    assert capsys.readouterr().err == "--output: s.html is the input too\n"
    assert main(["report", "named.json", "-o", "./graph.html"]) == 2
    assert "is a file of named.json too" in capsys.readouterr().err
    assert (here / "s.html").read_text() == text


def test_pages_have_the_colours_of_all_other_pictures() -> None:
    scripts = "".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS).lower()
    shared = {colour.lower() for colour in (ALARM, *DEVICES, *COLOURS.values())}
    assert not {colour for colour in shared if colour in scripts}
    html = page({"title": "", "headline": ""})
    assert f"const SERIES = {json.dumps(DEVICES)};" in html
    assert all(blame in COLOURS for blame in BLAMES)
