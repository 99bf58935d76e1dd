"""Steps of vTrain's measurements beside simulated ones: ``python -m benchmarks.vtrain [FILE]``.

vTrain (MICRO 2024) measured GPT models with Megatron-DeepSpeed on A100: 1F1B, full recomputation,
no ZeRO, 16-bit gradients that are reduced after the backward, shares sent between ranks of the
pipeline (DeepSpeed's ``is_pipe_partitioned``), 800 Gbit/s between machines. Layers cost what the
datasheet says, and where they are small the hosts hold them up: three host times, fitted to the
given steps on one machine as ``simdev calibrate`` does. ``--calibrate`` fits them again; FILE is a
table like the given.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import PEER_FILES
from simdev.costs import CostModel
from simdev.execution.scenario import Scenario, execute
from simdev.files import read_cluster, read_preset
from simdev.files.cluster import CLUSTERS
from simdev.files.device import datasheets
from simdev.measure.calibrate import MeasuredStep, calibrate_steps, steps_text
from simdev.nouns.cluster import Cluster, Host
from simdev.nouns.models.large import Transformer
from simdev.nouns.strategy import Parallelism, Strategy

HOST_TIME = {"forward": "1.82 ms", "backward": "1.72 ms", "update": "7.05 ms"}
"""Of a layer and microbatch (backward with recomputation), and of a step: the fit of
``--calibrate`` to the 144 given steps on one machine.
"""
VOCABULARY = 50_257
MS = "iteration time (ms)"


def given(name: str) -> Path:
    """The sample of the steps on one machine ("single") or on several ("multi")."""
    return PEER_FILES / "vtrain" / f"ground_truth_{name}_sample.csv"


def measured_steps(path: Path, host_time: Mapping[str, str]) -> list[MeasuredStep]:
    """The steps of a table with vTrain's columns, as scenarios with these host times."""
    with path.open(newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [
        MeasuredStep(
            _scenario({key: int(value) for key, value in row.items()}, host_time),
            row[MS] / 1e3,
            ", ".join(f"{value:g} {key}" for key, value in row.items() if key != MS),
        )
        for row in rows
    ]


def _scenario(row: Mapping[str, int], host_time: Mapping[str, str]) -> Scenario:
    hidden, samples, dp = row["hidden size"], row["micro batch"], row["data parallelism"]
    model = Transformer(
        "gpt", row["# layers"], hidden, row["attention heads"], 4 * hidden, VOCABULARY,
        row["sequence length"], host_time=host_time,
    )  # fmt: skip
    p = Parallelism(
        dp=dp, tp=row["tensor parallelism"], pp=row["pipeline parallelism"], microbatch=samples,
        microbatches=row["global batch"] // (dp * samples), recompute="full", flash=False,
        sequence_parallel=False, scatter_gather=True, zero=0, overlap=False, gradient_bytes=2,
    )  # fmt: skip
    cluster = _a100s(row["# GPUs"])
    costs = CostModel(specs=datasheets((), [device.kind for device in cluster.devices], ()))
    return Scenario(model, cluster, costs, Strategy(pipeline=p))


@cache
def _a100s(count: int) -> Cluster:
    """So many A100 with eager hosts: whole machines, or a part of one.

    The source's machines have 800 Gbit/s each: four adapters of the preset's eight. That two
    neighbours share one is ours.
    """
    if count > 8:
        told = json.loads((CLUSTERS / "dgx-a100-80.json").read_text())
        del told["provenance"]
        pairs = [[f"gpu:{i}", f"gpu:{i + 1}"] for i in range(0, 8, 2)]
        told |= {"nodes": count // 8, "network": told["network"] | {"attach": pairs}}
        return replace(read_cluster(told), host=Host())
    whole = read_preset("dgx-a100-80")
    kept = {*(f"gpu:{i}" for i in range(count)), "nvswitch:0"}
    devices = tuple(device for device in whole.devices if device.name in kept)
    links = tuple(link for link in whole.links if kept.issuperset(link.ends))
    return replace(whole, devices=devices, links=links, host=Host())


def errors(path: Path, host_time: Mapping[str, str] = HOST_TIME) -> NDArray[np.float64]:
    """Signed relative errors of a table's steps; no host times: hosts are left out."""
    steps = measured_steps(path, host_time)
    return np.array(
        [execute(step.scenario).trace.end_ps / 1e12 / step.seconds - 1 for step in steps]
    )


def summary(signed: NDArray[np.float64]) -> str:
    """Mean, median and worst size of errors, and their mean."""
    size = np.abs(signed)
    return (
        f"MAPE {size.mean():.1%}, median {np.median(size):.1%}, signed "
        f"{signed.mean():+.1%}, worst {size.max():.1%}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the errors of tables without hosts and with them, or the fit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vtrain", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="tables (default: the given samples)")
    parser.add_argument("--calibrate", action="store_true", help="fit the host times to each")
    options = parser.parse_args(arguments)
    for path in options.files or [given("single"), given("multi")]:
        if options.calibrate:
            print(steps_text(calibrate_steps(measured_steps(path, {}), path.name)))
            continue
        for title, times in (("without hosts", {}), ("with hosts", HOST_TIME)):
            signed = errors(path, times)
            print(f"{path.name}, {len(signed)} steps {title}: {summary(signed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
