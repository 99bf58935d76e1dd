"""Families: graphs of a kind, some to train a policy on and others to judge it by.

Placeto (Addanki et al., NeurIPS 2019, section 4) has three: translators by length and batch, and
networks whose cells ENAS sampled, for the images of CIFAR-10 and the words of Penn Treebank. Those
graphs were not published; these are drawn here and built by ``simdev.models``, smaller, so that
thousands of placements of each can be evaluated (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InputError
from ..graph import Graph
from ..models import enas_images, enas_words, nmt
from ..models.nasnet import OPERATIONS
from ..models.recurrent import ACTIVATIONS
from ..scenario import Scenario, load_scenario

TRAIN, HELD_OUT = 24, 8
DEVICES = 4
Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes a family: a builder of ``simdev.models``, and what draws the sizes it is given."""

    build: Callable[..., Graph]
    draw: Callable[[np.random.Generator], Sizes]


@dataclass(frozen=True)
class Family:
    """Graphs of a kind by their sizes: ``seen`` in training, and ``unseen``."""

    name: str
    seen: tuple[Sizes, ...] = field(repr=False)
    unseen: tuple[Sizes, ...] = field(repr=False)

    @cached_property
    def train(self) -> tuple[Scenario, ...]:
        """The scenarios to train on."""
        return tuple(_scenario(self.name, sizes) for sizes in self.seen)

    @cached_property
    def held_out(self) -> tuple[Scenario, ...]:
        """The scenarios to judge by, which no training has seen."""
        return tuple(_scenario(self.name, sizes) for sizes in self.unseen)


def family(name: str, seed: int = 0) -> Family:
    """A family of FAMILIES: 24 graphs to train on and 8 held out, all different, drawn with a seed.

    They run on four K80 as Placeto's simulator has them, in 32-bit floats, with times by formula;
    the placement that each is given puts all ops on the first. Raises InputError for another name.
    """
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(f'family: must be one of {", ".join(FAMILIES)}, got "{name}"')
    random, sizes = np.random.default_rng(seed), list[Sizes]()
    while len(sizes) < TRAIN + HELD_OUT:
        drawn = FAMILIES[name].draw(random)
        if drawn not in sizes:
            sizes.append(drawn)
    return Family(name, tuple(sizes[:TRAIN]), tuple(sizes[TRAIN:]))


def _scenario(name: str, sizes: Sizes) -> Scenario:
    """A graph on the cluster of all families, all on its first device."""
    fields = {"version": 1, "cluster": _CLUSTER, "strategy": {"placement": {"*": "gpu:0"}}}
    # Not every builder has a name that a scenario could say.
    scenario = load_scenario({**fields, "graph": {"ops": [{"name": "none", "time": 0}]}})
    return replace(scenario, graph=FAMILIES[name].build(**sizes))


def _translator(random: np.random.Generator) -> Sizes:
    """A translator of some length, width and batch."""
    return {
        "length": int(random.integers(5, 17)),
        "hidden": int(random.choice([256, 512, 1024])),
        "batch": int(random.choice([32, 64, 128])),
        "vocabulary": 8000,
    }


def _of_images(random: np.random.Generator) -> Sizes:
    """Three cells of three to five nodes; each reads two of the states before it."""
    nodes = []
    for state in range(2, 2 + int(random.integers(3, 6))):
        read, operations = random.integers(state, size=2), random.choice(OPERATIONS, 2)
        pairs = zip(operations.tolist(), read.tolist(), strict=True)
        nodes.append(" ".join(f"{operation} {before}" for operation, before in pairs))
    batch, filters = random.choice([64, 128]), random.choice([36, 64, 96])
    return {"cell": ", ".join(nodes), "batch": int(batch), "filters": int(filters)}


def _of_words(random: np.random.Generator) -> Sizes:
    """A recurrent cell of three to five nodes over a few steps of time."""
    names = random.choice(list(ACTIVATIONS), int(random.integers(3, 6))).tolist()
    reads = ["", *(f"{random.integers(node)} " for node in range(1, len(names)))]
    return {
        "cell": ", ".join(read + name for read, name in zip(reads, names, strict=True)),
        "length": int(random.integers(3, 6)),
        "batch": int(random.choice([64, 128, 256])),
    }


FAMILIES: Mapping[str, Kind] = {
    "nmt": Kind(nmt, _translator),
    "cifar10": Kind(enas_images, _of_images),
    "ptb": Kind(enas_words, _of_words),
}

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
