"""Families: graphs of a kind, some to train a policy on and others to judge it by.

Placeto (Addanki et al., NeurIPS 2019, section 4) has three: translators by length and batch, and
image and text models whose cells ENAS sampled. Those graphs were not published; these are made by
``simdev.models``, smaller, so that thousands of placements of each can be evaluated (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InputError
from ..scenario import Scenario, load_scenario

TRAIN, HELD_OUT = 24, 8
DEVICES = 4
Sizes = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Graphs by what scenario files say of them (``{"model": "nmt", "length": 12}``): those to
    train on, and ``unseen`` that no training sees.
    """

    name: str
    seen: tuple[Sizes, ...] = field(repr=False)
    unseen: tuple[Sizes, ...] = field(repr=False)

    @cached_property
    def train(self) -> tuple[Scenario, ...]:
        """The scenarios to train on."""
        return tuple(map(_scenario, self.seen))

    @cached_property
    def held_out(self) -> tuple[Scenario, ...]:
        """The scenarios to judge by."""
        return tuple(map(_scenario, self.unseen))


def family(name: str, seed: int = 0) -> Family:
    """A family of FAMILIES: 24 graphs to train on and 8 held out, all different, drawn with a seed.

    They run on four K80 as Placeto's simulator has them, in 32-bit floats, with times by formula;
    the placement that each is given puts all ops on the first. Raises InputError for another name.
    """
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(f'family: must be one of {", ".join(FAMILIES)}, got "{name}"')
    draw, random = FAMILIES[name], np.random.default_rng(seed)
    sizes = list[Sizes]()
    while len(sizes) < TRAIN + HELD_OUT:
        drawn = draw(random)
        if drawn not in sizes:
            sizes.append(drawn)
    return Family(name, tuple(sizes[:TRAIN]), tuple(sizes[TRAIN:]))


def _scenario(graph: Sizes) -> Scenario:
    """A graph on the cluster of all families."""
    return load_scenario(
        {
            "version": 1,
            "graph": graph,
            "cluster": _CLUSTER,
            "strategy": {"placement": {"*": "gpu:0"}},
        }
    )


def _nmt(random: np.random.Generator) -> Sizes:
    """A translator of some length, width and batch."""
    return {
        "model": "nmt",
        "length": int(random.integers(5, 17)),
        "hidden": int(random.choice([256, 512, 1024])),
        "batch": int(random.choice([32, 64, 128])),
        "vocabulary": 8000,
    }


FAMILIES: Mapping[str, Callable[[np.random.Generator], Sizes]] = {"nmt": _nmt}
"""By name what draws the sizes of a model."""

# The devices and links of the preset placeto-p2-8xlarge, half as many.
_CLUSTER: Sizes = {
    "version": 1,
    "name": "placeto-4x-k80",
    "queues": "egress",
    "transfer": "multicast",
    "devices": [
        {"name": f"gpu:{i}", "kind": "k80", "memory": "12 GB", "gap": "5.7 us"}
        for i in range(DEVICES)
    ],
    "links": {"all_to_all": {"bandwidth": "7.6 GB/s", "gap": "25 us", "duplex": "full"}},
}
