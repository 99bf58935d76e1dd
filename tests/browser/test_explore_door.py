"""``simdev explore`` as strangers, broken clients and a browser meet it, and the widget's frame."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from browsers import SCREENSHOTS, cut_parts, serious_findings
from simdev.commands.explorer import widget
from simdev.commands.explorer.door import METHODS, MODULE, ExploreState
from simdev.commands.explorer.explorer import explorer_of
from simdev.commands.server import respond
from waiting import HANGS, PAGE_HANGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAME = "alexnet-2x-gpu-staged"
HEADLINE = "document.querySelector('#headline').textContent"


@dataclass(frozen=True)
class Door:
    """A running ``simdev explore``."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2].partition("/")[0])

    @property
    def token(self) -> str:
        return self.url.partition("#")[2]

    def send(self, body: bytes, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS)
        with contextlib.closing(connection):
            given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request("POST" if body else "GET", "/", body or None, given | headers)
            reply = connection.getresponse()
            return reply.status, reply.read()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    command = [sys.executable, "-m", "simdev", "explore", NAME, "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield Door(process, process.stdout.readline().strip())
        process.terminate()
        assert process.wait(HANGS) == 0


def test_the_page_for_anybody_tells_nothing_of_the_scenario(door: Door) -> None:
    status, body = door.send(b"", Authorization="")
    text = unescape(body.decode())
    assert status == 200
    assert "connect-src 'self'" in text
    assert door.token not in text
    assert "alexnet" not in text.lower()
    assert door.send(b"", Host="evil.example")[0] == 403


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {"Authorization": "Bearer " + "0" * 32}),
        (401, {"Authorization": ""}),
        (403, {"Host": "evil.example"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (415, {"Content-Type": "text/plain"}),
        (413, {"Content-Length": "99999999"}),
    ],
)
def test_strangers_learn_nothing(door: Door, status: int, headers: dict[str, str]) -> None:
    if "Content-Length" in headers:
        headers = {**headers, "Connection": "close"}
    code, body = door.send(b'{"method": "knobs"}', **headers)
    assert code == status
    assert "error" in json.loads(body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b'{"method": "load", "params": {"scenario": "/etc/passwd"}}', "unknown_method"),
        (b'{"method": "shutdown"}', "unknown_method"),
        (b'{"method": "ask"}', "invalid"),
        (b'{"method": "ask", "params": {"settings": [1]}}', "invalid"),
        (b'{"method": "ask", "params": {"settings": {}, "tables": 1}}', "invalid"),
        (b'{"method": "ask", "params": {"settings": {}, "shape": true}}', "invalid"),
        (b'{"method": "ask", "params": {"settings": {}, "shape": [1]}}', "invalid"),
        (b'{"method": "ask", "params": {"settings": {"bandwidth": 1e999}}}', "malformed"),
        (b'{"method": "ask", "params": {"settings": {"bandwidth": 1e300}}}', "input"),
        (b'{"method": "ask", "params": {"settings": {"a": %s}}}' % (b"[" * 99), "malformed"),
        (b'{"method": "ask", "params": {"settings": {"<script>": 1}}}', "input"),
    ],
)
def test_broken_requests_are_answered_with_their_reason(body: bytes, code: str) -> None:
    reply = json.loads(respond(state(), body, METHODS).body)
    assert reply["error"]["code"] == code


@cache
def state() -> ExploreState:
    return ExploreState(explorer_of(NAME))


def opened(browser: Browser, width: int, scheme: str) -> tuple[Page, list[str]]:
    faults: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(1000 * PAGE_HANGS)
    page = context.new_page()
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    return page, faults


def headline(page: Any) -> str:
    return str(page.locator("#headline").text_content())


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_slider_simulates_anew(door: Door, browser: Browser, width: int, scheme: str) -> None:
    page, faults = opened(browser, width, scheme)
    page.goto(door.url)
    page.locator("table").first.wait_for()
    before = headline(page)
    page.get_by_role("slider", name="Bandwidth of all links").press("End")
    page.get_by_text("tables follow").or_(page.get_by_text("% of the scenario")).first.wait_for()
    page.wait_for_function(f"text => {HEADLINE} !== text", arg=before)
    expected = state().explorer.page({"bandwidth": 8}, tables=False)["headline"]
    assert headline(page).startswith(expected)
    assert not list(serious_findings(page))
    assert not cut_parts(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"explore-{width}-{scheme}.png")
    page.get_by_role("button", name="Bandwidth of all links as in the scenario").click()
    page.wait_for_function(f"text => {HEADLINE} === text", arg=before)
    assert not faults


# What a notebook does with a widget's module: a model that sends to Python and hears from it.
HOST = """
const model = {
  hears: [], get: (name) => window.values[name],
  on(name, call) { this.hears.push(call); }, off() {},
  async send(message) { const reply = JSON.parse(await window.python(JSON.stringify(message)));
    for (const call of this.hears) call(reply); },
};
render({ model, el: document.body });
"""


def test_the_widget_asks_the_notebooks_process(browser: Browser) -> None:
    made = widget(NAME, height=500)
    sent: list[Any] = []
    made.send = lambda content, buffers=None: sent.append(content)
    page, faults = opened(browser, 1000, "light")

    def python(text: str) -> str:
        made._handle_custom_msg(json.loads(text), [])
        return json.dumps(sent.pop())

    page.expose_function("python", python)
    page.goto("about:blank")
    page.evaluate("values => { window.values = values }", {"page": made.page, "height": 500})
    page.add_script_tag(content=MODULE.partition("export default")[0] + HOST)
    frame = page.frame_locator("iframe")
    frame.locator("table").first.wait_for()
    before = headline(frame)
    frame.get_by_role("slider", name="Bandwidth of all links").press("End")
    frame.get_by_text("% of the scenario").first.wait_for()
    assert headline(frame) != before
    assert not faults
