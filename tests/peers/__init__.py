"""Published answers and measured inputs of other tools; README.md gives the source and licence of
each file.
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
    """The (bytes, seconds) of all-reduces by number of A100 GPUs of a node, 2 to 8, as published by
    vTrain.
    """
    rows = defaultdict(list)
    with gzip.open(PEERS / "vtrain" / "allreduce_a100.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            rows[int(row["n_gpus"])].append((int(row["bytes"]), float(row["microseconds"]) / 1e6))
    return dict(rows)
