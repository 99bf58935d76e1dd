"""SimuMax's B200 by its own measured operators: what its layers' kernels take, as a profile.

The numbers are those of configs/system/b200_bf16_ceperm.json (Apache-2.0): products and attention
by shape (``tests/peers/simumax``), collectives by line, and for passes over memory one bandwidth
and 30 us each. None of them belongs to a step.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

from benchmarks.common import PEER_FILES
from simdev.costs import DeviceSpec, Efficiency, Profile, Row
from simdev.costs.collectives import CollectiveTable
from simdev.costs.groups import device_prefix
from simdev.files import read_device
from simdev.nouns.models.large import Transformer, classifier, layer, shard_of
from simdev.nouns.models.large.kernels import Kernel
from simdev.nouns.semantics.keys import PHASE_CODES
from simdev.nouns.strategy import Parallelism

B200 = "b200"
LINK = 900 * 2**30  # bytes/s: what shares of collectives are of
PEAK = 2250e12  # FLOP/s: what the efficiencies are shares of
BANDWIDTH, LATENCY = 8000 * 2**30, Fraction(30, 10**6)  # bytes/s, and seconds a pass
PASSES, LOSS = 0.666, 0.3246  # shares of the bandwidth
PRODUCTS, ATTENTION = Fraction("0.488"), Fraction("0.70")  # of the peak, where a shape is not told
LATENTS = 1536, 576  # DeepSeek's: of queries; of keys and values, and the positions beside them
Shares = tuple[float, ...]


@cache
def device() -> DeviceSpec:
    """The datasheet of the B200 with what SimuMax's operators reach on average."""
    spec, nothing = read_device(B200), Fraction(0)
    memory, loss = (
        Fraction(f"{share * BANDWIDTH / float(spec.memory_bandwidth):.3f}")
        for share in (PASSES, LOSS)
    )
    told = {
        "default": Efficiency(PRODUCTS, memory, LATENCY),
        "gemm": Efficiency(PRODUCTS, memory, nothing),
        "attention": Efficiency(ATTENTION, memory, nothing),
        "softmax": Efficiency(PRODUCTS, loss, LATENCY),
    }
    return replace(spec, efficiency=told)


@cache
def _operators() -> dict[tuple[int, ...], Shares]:
    """Shares of the peak, forward, backward and of weights: by (m, k, n), or of attention by heads
    and the width of each.
    """
    table = {}
    with (PEER_FILES / "simumax" / "operators.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            names = ("heads", "k") if row["op"] == "attention" else ("m", "k", "n")
            shares = (float(row[name] or 1) for name in ("forward", "backward", "weight"))
            table[tuple(int(row[name]) for name in names)] = tuple(shares)
    return table


@cache
def collectives() -> tuple[CollectiveTable, ...]:
    """What the machine's collectives take over 2, 4 and 8 of its devices: a line each."""
    with (PEER_FILES / "simumax" / "collectives.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(_line(row, int(ranks)) for row in rows for ranks in row["ranks"].split())


def _line(row: Mapping[str, str], ranks: int) -> CollectiveTable:
    scale, share, latency, fixed = (
        Fraction(row[name]) for name in ("scale", "share", "latency_us", "fixed_us")
    )

    def seconds(size: int) -> Fraction:
        moved = Fraction(size * (ranks - 1), ranks) / (share * LINK)
        return scale * moved + (scale * (ranks - 1) * latency + fixed) / 10**6

    anchors = tuple((size, seconds(size)) for size in (1, 2**30))
    return CollectiveTable(row["op"], ranks, anchors, "fitted")


def profile(model: Transformer, p: Parallelism) -> Profile:
    """Measured rows for the products and attention of a model's shard, as far as they are told."""
    # The source counts the FLOPs of attention over all pairs.
    shard = shard_of(replace(model, causal=False), p)
    kernels = (
        kernel
        for block in (layer(shard, 0), layer(shard, model.layers - 1), classifier(shard))
        for kernel in (*block.forward, *block.backward, *block.weight)
    )
    rows = {row.key: row for row in _rows(kernels)}
    return Profile.of_rows({}, list(rows.values()))


def _rows(kernels: Iterator[Kernel]) -> Iterator[Row]:
    for kernel in kernels:
        if kernel.op_class not in ("gemm", "attention"):
            continue
        shape, which = _asked(kernel)
        parts = _parts(shape)
        if all(part in _operators() for part in parts):
            shares = (_operators()[part][which] / part[-1] for part in parts)
            whole = sum(part[-1] for part in parts)
            seconds = kernel.flops / PEAK * sum(1 / share for share in shares) / whole
            key = device_prefix(B200) + kernel.key.removeprefix(device_prefix(""))
            yield Row(key, Fraction(f"{seconds:.6e}"))


def _parts(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of the table that make a kernel's: latents of queries, and of keys and values, are
    products of their own there, and tokens of an expert are padded to eights.
    """
    *rows, columns = shape
    if columns == sum(LATENTS):
        return [(*rows, width) for width in LATENTS]
    if len(shape) == 3:
        rows[0] = -(-rows[0] // 8) * 8
    return [(*rows, columns)]


def _asked(kernel: Kernel) -> tuple[tuple[int, ...], int]:
    """The table's shape of a kernel, and its column."""
    _, _, phase, attrs, operands, _, _ = json.loads(kernel.key)
    backward = int(phase == PHASE_CODES["backward"])
    if kernel.op_class == "attention":
        return (operands[0][1], operands[0][3]), backward
    (m, a), (b, c) = operands
    if attrs.get("transpose_a"):
        return (m, c, a), 2
    return ((m, a, b), 0) if attrs.get("transpose_b") else ((m, c, b), 1)
