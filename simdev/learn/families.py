"""Families: similar graphs, some to train a policy on and others to test it with.

Placeto (Addanki et al., NeurIPS 2019, section 4) has three: translators by length and batch, and
networks with cells sampled by ENAS, for the images of CIFAR-10 and the words of Penn Treebank.
Those graphs were not published; similar ones are drawn here and built by ``simdev.nouns.models``,
smaller, so that thousands of placements of each can be evaluated (ours). A folder of scenarios is a
family too.

``simdev family`` writes families and ``pretraining.train`` trains on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..execution.scenario import Scenario, load_scenario
from ..files.reading import PathLike
from ..files.writing import new_folder, write_text
from ..ground.errors import InputError, reason_of, refuse
from ..nouns.models.convolutional import OPERATIONS
from ..nouns.models.recurrent import ACTIVATIONS

TRAIN, HELD_OUT = 24, 8
TRAINED, HELD = "train", "held-out"  # the folders of a family
DEVICES = 4
Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A model of ``simdev.nouns.models``, and the function that draws its sizes."""

    model: str
    draw: Callable[[np.random.Generator], Sizes]


@dataclass(frozen=True)
class Family:
    """Similar graphs by their sizes: ``seen`` in training, and ``unseen``."""

    name: str
    seen: tuple[Sizes, ...] = field(repr=False)
    unseen: tuple[Sizes, ...] = field(repr=False)

    @cached_property
    def train(self) -> tuple[Scenario, ...]:
        """The scenarios to train on."""
        return tuple(load_scenario(_document(self.name, sizes)) for sizes in self.seen)

    @cached_property
    def held_out(self) -> tuple[Scenario, ...]:
        """The scenarios to test with, which no training has seen."""
        return tuple(load_scenario(_document(self.name, sizes)) for sizes in self.unseen)


def family(name: str, seed: int = 0) -> Family:
    """A family of FAMILIES: 24 graphs to train on and 8 held out, all different, drawn with a seed.

    They run on four K80 with the links of Placeto's simulator, in 32-bit floats, with times by
    formula; their placement has all ops on the first device. Raises InputError for another name.
    """
    if not isinstance(name, str) or name not in FAMILIES:
        raise InputError(_unknown(name))
    random, sizes = np.random.default_rng(seed), list[Sizes]()
    while len(sizes) < TRAIN + HELD_OUT:
        drawn = FAMILIES[name].draw(random)
        if drawn not in sizes:
            sizes.append(drawn)
    return Family(name, tuple(sizes[:TRAIN]), tuple(sizes[TRAIN:]))


def write_family(written: Family, folder: PathLike) -> None:
    """Write a family as scenarios into a new folder, ``train/00.json`` to ``held-out/31.json``,
    whole or not at all. Raises OSError, also where the folder exists and is not empty.
    """
    with new_folder(folder) as place:
        count = len(written.seen)
        for part, first, drawn in (TRAINED, 0, written.seen), (HELD, count, written.unseen):
            os.mkdir(os.path.join(place, part))
            for i, sizes in enumerate(drawn, first):
                text = json.dumps(_document(written.name, sizes), indent=1) + "\n"
                write_text(os.path.join(place, part, f"{i:02d}.json"), text)


def scenarios_of(name: str) -> Mapping[str, Scenario]:
    """The scenarios of a folder, or the training scenarios of a family, by the names that messages
    use.

    Raises InputError where there is neither, and for a folder as ``read_scenarios`` does.
    """
    if os.path.isdir(name):
        return read_scenarios(name)
    if name not in FAMILIES:
        raise InputError(_unknown(name, ", or a folder of scenarios"))
    return {f"{name}[{i}]": scenario for i, scenario in enumerate(family(name).train)}


def _unknown(name: object, otherwise: str = "") -> str:
    return f'family: must be one of {", ".join(FAMILIES)}{otherwise}, got "{name}"'


def read_scenarios(folder: PathLike) -> dict[str, Scenario]:
    """The scenarios of a folder by their paths, in the order of their names: all files that end in
    .json or .json.gz. Raises InputError with the problems of all files.
    """
    path = os.fspath(folder)
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith((".json", ".json.gz")))
    except OSError as error:
        raise InputError(reason_of(error), path) from None
    if not names:
        inner = "train" if os.path.isdir(os.path.join(path, "train")) else ""
        hint = f'; its folder "{inner}" may' if inner else ""
        raise InputError(f"holds no scenario (.json, .json.gz){hint}", path)
    scenarios, problems = dict[str, Scenario](), list[str]()
    for file in (os.path.join(path, name) for name in names):
        try:
            scenarios[file] = load_scenario(file)
        except InputError as error:
            before = f"{error.file}: " if error.file else ""
            problems += [before + problem for problem in error.problems]
    refuse(problems)
    return scenarios


def _document(name: str, sizes: Sizes) -> dict[str, Any]:
    """The scenario of a graph on the families' cluster, all on its first device, as its file's
    object.
    """
    return {
        "version": 1,
        "graph": {"model": FAMILIES[name].model, **sizes},
        "cluster": _CLUSTER,
        "strategy": {"placement": {"*": _CLUSTER["devices"][0]["name"]}},
    }


def _translator(random: np.random.Generator) -> Sizes:
    """A translator of some length, width and batch."""
    return {
        "length": int(random.integers(5, 17)),
        "hidden": int(random.choice([256, 512, 1024])),
        "batch": int(random.choice([32, 64, 128])),
        "vocabulary": 8000,
    }


def _of_images(random: np.random.Generator) -> Sizes:
    """Sizes of an image network: a cell of three to five nodes, each of which reads two earlier
    states.
    """
    nodes = []
    for state in range(2, 2 + int(random.integers(3, 6))):
        read, operations = random.integers(state, size=2), random.choice(OPERATIONS, 2)
        pairs = zip(operations.tolist(), read.tolist(), strict=True)
        nodes.append(" ".join(f"{operation} {before}" for operation, before in pairs))
    batch, filters = random.choice([64, 128]), random.choice([36, 64, 96])
    return {"cell": ", ".join(nodes), "batch": int(batch), "filters": int(filters)}


def _of_words(random: np.random.Generator) -> Sizes:
    """Sizes of a word network: a recurrent cell of three to five nodes over a few steps of time."""
    names = random.choice(list(ACTIVATIONS), int(random.integers(3, 6))).tolist()
    reads = ["", *(f"{random.integers(node)} " for node in range(1, len(names)))]
    return {
        "cell": ", ".join(read + name for read, name in zip(reads, names, strict=True)),
        "length": int(random.integers(3, 6)),
        "batch": int(random.choice([64, 128, 256])),
    }


FAMILIES: Mapping[str, Kind] = {
    "nmt": Kind("nmt", _translator),
    "cifar10": Kind("enas-images", _of_images),
    "ptb": Kind("enas-words", _of_words),
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
