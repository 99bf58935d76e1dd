"""Devices that follow the roofline model, rows measured on them, and queries of cost models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from simdev import CostModel, Graph, Op
from simdev.costs import DeviceSpec, OpCost, Profile, Row, profile_key
from simdev.costs.roofline import Scalars, ideal_seconds
from simdev.nouns.graph import Tensor
from simdev.nouns.semantics.keys import Load, load_of

US = Fraction(1, 10**6)
SPEC = DeviceSpec("fast", {"float32": Fraction(10**14)}, Fraction(10**12))
SLOW = DeviceSpec("slow", {"float32": Fraction(10**12)}, Fraction(10**11))
KNOWN = Scalars(0.62, 0.81, 4e-6)


def key(
    shapes: Sequence[Sequence[int]], out: Sequence[int], kind: str = "matmul", device: str = "fast"
) -> str:
    return profile_key(kind, {}, shapes, ["float32"] * len(shapes), [out], "fwd", device)


def product(m: int, k: int, n: int, device: str = "fast") -> str:
    return key([(m, k), (k, n)], (m, n), "matmul", device)


def relu(count: int, device: str = "fast") -> str:
    return key([(count,)], (count,), "relu", device)


def load(text: str) -> Load:
    found = load_of(text)
    assert found is not None
    return found


def lasting(
    text: str, spec: DeviceSpec = SPEC, scalars: Scalars = KNOWN, factor: float = 1.0
) -> Row:
    """A row of a device that follows the model exactly, times a factor."""
    return Row(text, Fraction(scalars.seconds(ideal_seconds(load(text), spec)) * factor))


def profile(rows: Iterable[Row]) -> Profile:
    return Profile.of_rows({}, list({row.key: row for row in rows}.values()))


def products(count: int, seed: int = 0, device: str = "fast") -> list[str]:
    rng = np.random.default_rng(seed)
    return [product(*map(int, 2 ** rng.uniform(4, 12, 3)), device) for _ in range(count)]


def op_of(text: str, name: str = "a", **fields: Any) -> tuple[Op, ...]:
    """An op with this key, after the ops that make its inputs."""
    _, kind, _, attrs, shapes, dtypes, outs = json.loads(text)
    made = [
        Op(f"{name}_{i}", "input", outputs=(tensor(shape, dtype),), time=0)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    outputs = tuple(tensor(shape, "float32") for shape in outs)
    return *made, Op(
        name, kind, inputs=tuple(op.name for op in made), outputs=outputs, attrs=attrs, **fields
    )


def tensor(shape: Sequence[int], dtype: str) -> Tensor:
    return Tensor(4 * math.prod(shape), tuple(shape), dtype)


def asked(costs: CostModel, text: str, **fields: Any) -> OpCost | None:
    """The cost of the op with this key, on the kind of device that the key names."""
    ops = op_of(text, **fields)
    return costs.cost(Graph("g", ops), len(ops) - 1, json.loads(text)[0])


def answer(costs: CostModel, text: str, **fields: Any) -> OpCost:
    found = asked(costs, text, **fields)
    assert found is not None
    return found


MODELS = (
    CostModel((profile(lasting(text) for text in products(60)),), (SPEC,)),
    CostModel((profile(lasting(text) for text in products(6)),), (SPEC,)),
    CostModel(
        (profile(lasting(text, SLOW) for text in products(60, device="slow")),), (SPEC, SLOW)
    ),
    CostModel(specs=(SPEC,)),
)
