"""The methods that learn, registered with those of ``simdev.search``."""

from __future__ import annotations

from collections.abc import Mapping

from ..search.methods import Method

METHODS: Mapping[str, Method] = {
    "colocrl": Method(
        "learn.colocrl.learner:colocrl",
        ("pair",),
        5000,
        learner="learn.colocrl.settings:Settings",
        torch=True,
    ),
    "hdp": Method(
        "learn.hdp.learner:hdp", (), 5000, learner="learn.hdp.settings:Settings", torch=True
    ),
    "spotlight": Method(
        "learn.spotlight.learner:spotlight",
        ("pair",),
        5000,
        learner="learn.spotlight.settings:Settings",
        torch=True,
    ),
    "placeto": Method(
        "learn.placeto.learner:placeto",
        ("pair",),
        5000,
        learner="learn.placeto.settings:Settings",
        torch=True,
        general="learn.placeto.learner:general",
    ),
    "gdp": Method(
        "learn.gdp.learner:gdp",
        (),
        5000,
        learner="learn.gdp.settings:Settings",
        torch=True,
        general="learn.gdp.learner:general",
    ),
    "post": Method("learn.post:post", ("pair",), 5000, learner="learn.post:Settings"),
}
