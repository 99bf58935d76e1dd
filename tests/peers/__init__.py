"""Peers' own answers and measured inputs; README.md says where each file is from and under which
licence.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from functools import cache
from pathlib import Path

PEERS = Path(__file__).parent


@cache
def measured_all_reduces() -> dict[int, list[tuple[int, float]]]:
    """By number of A100 GPUs, 2 to 8, of one node: bytes and seconds of all-reduces, as vTrain
    publishes them.
    """
    rows = defaultdict(list)
    with gzip.open(PEERS / "vtrain" / "allreduce_a100.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            rows[int(row["n_gpus"])].append((int(row["bytes"]), float(row["microseconds"]) / 1e6))
    return dict(rows)
