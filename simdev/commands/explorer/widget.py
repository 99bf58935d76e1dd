"""The explorer in a notebook: the page with sliders in a frame, which asks this process.

Needs anywidget.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario
from ...ground.errors import InputError, install_line
from ...report.page import page
from ..server import respond
from .door import METHODS, TITLE, ExploreState
from .explorer import explorer_of

if TYPE_CHECKING:
    from anywidget import AnyWidget

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
        """The page as it is shown, and its height in pixels."""

        _esm = MODULE
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    state = ExploreState(explorer_of(scenario, name))
    html = page({"page": "explore", "title": TITLE, "headline": "", "around": True})
    made = ExploreWidget(page=html, height=height)

    def answer(widget: AnyWidget, message: Any, buffers: Any) -> None:
        widget.send(json.loads(respond(state, json.dumps(message).encode(), METHODS)))

    made.on_msg(answer)
    return made
