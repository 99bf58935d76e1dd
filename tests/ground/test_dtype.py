"""Dtypes have one name each, and every datasheet tells how fast it computes them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simdev import Scenario, run
from simdev.costs import CostModel, DeviceSpec
from simdev.files import read_graph, read_profile
from simdev.files.device import device_presets, read_device
from simdev.ground.errors import InputError, MissingCostError
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import MemoryModel
from simdev.nouns.models import build
from simdev.nouns.semantics.dtype import (
    ALIASES,
    BITS,
    PARAMETERS,
    PEAKS,
    STAND_INS,
    bits_of,
    canonical,
)
from simdev.nouns.strategy import Strategy
from worlds.costs import row_of

SIZE = 8192


def product(dtype: str, size: int = SIZE) -> Graph:
    square = Tensor(size * size * bits_of(dtype) // 8, (size, size), dtype)
    ops = Op("a", "input", outputs=(square,)), Op("b", "input", outputs=(square,))
    return Graph("product", (*ops, Op("c", "matmul", inputs=("a", "b"), outputs=(square,))))


def seconds(dtype: str, spec: DeviceSpec) -> float:
    cost = CostModel(specs=(spec,)).cost(product(dtype), 2, spec.kind)
    assert cost is not None
    return float(cost.seconds)


def test_names_of_dtypes_are_told_apart() -> None:
    assert not BITS.keys() & ALIASES.keys()
    assert {*ALIASES.values(), *PARAMETERS, *PEAKS, *STAND_INS} <= BITS.keys()
    assert {name for names in STAND_INS.values() for name in names} <= {*PEAKS}
    assert all(canonical(name) == name for name in BITS)


@pytest.mark.parametrize(
    "name", ["FP16", "fp16", "half", "torch.float16", "torch.half", " Float16", "np.float16"]
)
def test_one_dtype_has_one_name(name: str) -> None:
    assert canonical(name) == "float16"
    assert seconds(name, read_device("t4")) == seconds("float16", read_device("t4"))


def test_float64_takes_its_own_rate() -> None:
    """NVIDIA T4: 1/32 of float32."""
    t4 = read_device("t4")
    assert seconds("float64", t4) == pytest.approx(32 * seconds("float32", t4), rel=0.01)
    assert seconds("int8", t4) == pytest.approx(seconds("float16", t4) / 2, rel=0.05)


@pytest.mark.parametrize("spec", device_presets(), ids=lambda spec: spec.kind)
def test_every_shipped_datasheet_names_float64_and_int8(spec: DeviceSpec) -> None:
    assert {"float64", "float32", "int8"} <= spec.flops.keys()
    assert spec.flops["float64"] <= spec.flops["float32"]


def test_what_stands_in_for_a_dtype_is_told() -> None:
    cost = CostModel(specs=(read_device("v100"),)).cost(product("bfloat16"), 2, "v100")
    assert cost is not None
    assert cost.basis == "datasheet: bfloat16 at the peak of float32"


def test_a_datasheet_without_float64_refuses_it() -> None:
    spec = DeviceSpec("gpu", {"float32": Fraction(10**13)}, Fraction(10**12))
    cluster = Cluster("one", (Device("gpu:0", "gpu"),))
    with pytest.raises(MissingCostError, match='"gpu" names no peak for float64; it has float32'):
        run(
            Scenario(
                product("float64"), cluster, CostModel(specs=(spec,)), Strategy({"*": "gpu:0"})
            )
        )


def test_rows_are_found_under_other_names() -> None:
    square = [SIZE, SIZE]
    row = row_of("matmul", [square, square], [square], 5000, dt=["torch.float16", "half"])
    profile = read_profile({"rows": [row]})
    cost = CostModel((profile,)).cost(product("FP16"), 2, "gpu")
    assert cost is not None
    assert (cost.seconds, cost.rung) == (Fraction(5, 10**6), "measured")


def graph_of(**fields: Any) -> dict[str, Any]:
    return {
        "ops": [{"name": "a", "outputs": [{"bytes": 4, "shape": [2], "dtype": "half"}], **fields}]
    }


def test_unknown_names_are_refused_at_the_door() -> None:
    assert read_graph(graph_of()).ops[0].outputs[0].dtype == "half"
    with pytest.raises(
        InputError, match=r'^ops\[0\]\.outputs\[0\]\.dtype: no dtype "flot16"; there are float64, '
    ):
        read_graph(graph_of(outputs=[{"bytes": 4, "dtype": "flot16"}]))
    with pytest.raises(
        InputError, match=r'^ops\[0\]\.attrs\.dt\[1\]: no dtype "flot16"; there are float64, '
    ):
        read_graph(graph_of(attrs={"dt": ["float16", "flot16"]}))
    row = row_of("relu", [[2]], [[2]], 5000, "flot16")
    with pytest.raises(InputError, match=r'^rows\[0\]: .*no dtype "flot16"; there are float64, '):
        read_profile({"rows": [row]})
    cluster, costs = Cluster("one", (Device("gpu:0", "t4"),)), CostModel(specs=(read_device("t4"),))
    graph = product("float16")
    bad = tuple(
        Op(op.name, op.kind, inputs=op.inputs, outputs=(Tensor(4, (2, 2), "flot16"),))
        for op in graph.ops
    )
    with pytest.raises(InputError, match='op "c": no dtype "flot16"; there are float64, '):
        run(Scenario(Graph("bad", bad), cluster, costs, Strategy({"*": "gpu:0"})))


def test_options_and_models_know_the_names() -> None:
    assert MemoryModel(dtype="FP16").dtype == "float16"
    assert build("lenet", batch=2, dtype="torch.bfloat16") == build(
        "lenet", batch=2, dtype="bfloat16"
    )
    with pytest.raises(InputError, match=r'^dtype: must be one of .*, got "int3"'):
        build("lenet", batch=2, dtype="int3")


def test_measured_rows_of_a_dtype_without_a_peak_stand_alone(tmp_path: Path) -> None:
    """They answer for themselves, and fit nothing."""
    rows = [
        row_of("matmul", [[n, n]] * 2, [[n, n]], 1000 + n**3 // 100, "float64")
        for n in (64, 128, 256, 512, 1024, 2048)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = DeviceSpec("gpu", {"float32": Fraction(10**13)}, Fraction(10**12))
    costs = CostModel((read_profile(path),), (spec,))
    assert costs.cost(product("float64", 64), 2, "gpu") is not None
    assert costs.cost(product("float64", 96), 2, "gpu") is None
    assert costs.cost(product("float32", 96), 2, "gpu") is not None
