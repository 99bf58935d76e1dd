"""The table of methods that learn.

``simdev.search.methods`` finds it in the registry and joins it to its own table. A new learner is a
row here, a class of settings in ``settings``, and a module beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..search.methods import Method


def _learner(
    path: str, settings: str, *prepare: str, general: str | None = None, torch: bool = True
) -> Method:
    return Method(
        f"learn.{path}", prepare, 5000, learner=f"learn.{settings}", torch=torch, general=general
    )


METHODS: Mapping[str, Method] = {
    "colocrl": _learner("seq2seq:colocrl", "settings:ColocRLSettings", "pair"),
    "hdp": _learner("hdp:hdp", "settings:HDPSettings"),
    "spotlight": _learner("seq2seq:spotlight", "settings:SpotlightSettings", "pair"),
    "placeto": _learner(
        "placeto.learner:placeto",
        "settings:PlacetoSettings",
        "pair",
        general="learn.placeto.learner:general",
    ),
    "gdp": _learner("gdp:gdp", "settings:GDPSettings", general="learn.gdp:Together"),
    "post": _learner("post:post", "post:Settings", "pair", torch=False),
}
