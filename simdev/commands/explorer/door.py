"""The two doors of an explorer: HTTP on the loopback, as in ``simdev serve`` (with a token and
limits), and a widget in a notebook, which calls this process.

HTTP without the token gets only an empty page. The token stands after the ``#`` of the address,
which browsers send to nobody; the page uses it for all further requests. METHODS are called by
``report/page/assets/explore.js`` through either door. The widget needs anywidget; notebooks import
it from ``simdev.commands.explorer``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from html import escape
from math import inf
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario
from ...ground.errors import InputError, install_line
from ...report.page import page
from ..server import Limits, RequestError, ServerState, respond
from ..server.http import Service, private_file, serve_with
from .explorer import Explorer, explorer_of

if TYPE_CHECKING:
    from anywidget import AnyWidget

LIMITS = Limits(request_bytes=64 * 2**10, seconds=inf)
TITLE = "simdev explore"
# A page of another site must neither show this page in a frame nor learn its address.
HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class ExploreState(ServerState):
    """The state of a server that answers for one explorer."""

    def __init__(self, explorer: Explorer) -> None:
        super().__init__(LIMITS)
        self.explorer = explorer


def knobs(state: ExploreState) -> Any:
    """The knobs of the scenario."""
    return [asdict(knob) for knob in state.explorer.knobs]


def ask(state: ExploreState, settings: Any, tables: Any = True, shape: Any = None) -> Any:
    """The page under these settings. Raises RequestError, SimdevError."""
    if not isinstance(settings, dict):
        raise RequestError("params.settings: must be an object of numbers by the names of knobs")
    if not isinstance(tables, bool):
        raise RequestError("params.tables: must be true or false")
    if shape is not None and type(shape) is not int:  # true is no number
        raise RequestError("params.shape: must be a whole number or null")
    return state.explorer.page(settings, tables, shape)


METHODS: dict[str, Callable[..., Any]] = {"knobs": knobs, "ask": ask}


def serve_explorer(explorer: Explorer, port: int, show: Callable[[str, str], None]) -> None:
    """Answer until SIGTERM or SIGINT. ``show(url, file)`` is called when the server is ready;
    ``file`` is a page that redirects to the URL and that only its owner can read.

    Raises InputError where the port is taken or the packages are not installed.
    """
    service = Service(
        ExploreState(explorer),
        METHODS,
        page=page({"page": "explore", "title": TITLE, "headline": ""}, asks=True).encode(),
        headers=HEADERS,
    )

    @contextmanager
    def announce(url: str, token: str) -> Iterator[None]:
        place = f"{url}#{token}"
        # Other users of this machine see a browser's arguments: the token is hidden in a file.
        leading = f'<meta http-equiv="refresh" content="0; url={escape(place)}">\n'
        with private_file(leading, "simdev-explore-", ".html") as path:
            show(place, path)
            yield

    serve_with(service, port, announce)


HEIGHT = 720  # pixels

# The frame has an origin of its own (sandbox): it can reach neither the notebook nor its server.
MODULE = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "simdev explore";
  frame.sandbox = "allow-scripts";
  frame.srcdoc = model.get("page");
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  const question = (event) => {
    if (event.source === frame.contentWindow) model.send(event.data);
  };
  const answer = (reply) => frame.contentWindow.postMessage(reply, "*");
  addEventListener("message", question);
  model.on("msg:custom", answer);
  el.append(frame);
  return () => {
    removeEventListener("message", question);
    model.off("msg:custom", answer);
  };
}
export default { render };
"""


def widget(
    scenario: Scenario | str | os.PathLike[str], name: str = "", height: int = HEIGHT
) -> AnyWidget:
    """A widget of a scenario, or of its file, ``height`` pixels high, for the end of a cell.

    Raises SimdevError, also where anywidget is not installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise InputError(f"a widget needs anywidget: {install_line('widget')}") from None

    class ExploreWidget(anywidget.AnyWidget):
        """The page that is shown, and its height in pixels."""

        _esm = MODULE
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    state = ExploreState(explorer_of(scenario, name))
    html = page({"page": "explore", "title": TITLE, "headline": "", "around": True})
    made = ExploreWidget(page=html, height=height)

    def answer(widget: AnyWidget, message: Any, buffers: Any) -> None:
        widget.send(json.loads(respond(state, json.dumps(message).encode(), METHODS).body))

    made.on_msg(answer)
    return made
