"""Scripts run over gloo beside their captures, on tensors so small that nothing takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.scripts import TINY, predicted, profiled, really_run
from simdev.measure.provenance import device_kind

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def machine() -> dict[str, Any]:
    """Two cores and what messages take between them."""
    devices = [
        {"name": f"cpu:{i}", "kind": device_kind("cpu"), "memory": "1 GiB"} for i in range(2)
    ]
    link = {"bandwidth": "1 GB/s", "latency": "10 us"}
    cluster = {"version": 1, "queues": "half-duplex", "devices": devices}
    return {"cluster": {**cluster, "links": {"all_to_all": link}}, "collectives": {}}


@pytest.mark.slow
def test_a_script_is_run_profiled_and_predicted(machine: dict[str, Any], tmp_path: Path) -> None:
    seconds = really_run("ddp", TINY)
    assert len(seconds) == 5
    assert min(seconds) > 0
    profiles = profiled("ddp", 0.5, tmp_path, TINY)
    alone, count = predicted("ddp", profiles, machine, TINY)
    assert alone > 0
    # A device runs one operator after another, so all gaps but those beside messages add up.
    between = 1e-3
    longer, _ = predicted("ddp", profiles, machine, TINY, between)
    assert 0.95 * count * between < longer - alone <= count * between
