"""A loop of Hugging Face Accelerate, where it is installed, is captured as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from simdev.measure.ranks import capture_ranks

pytest.importorskip("accelerate")
LOOP = Path(__file__).parents[3] / "scenarios/scripts/accelerate_loop.py"
WIDTH, LAYERS = 64, 2
# nn.TransformerEncoderLayer: attention in and out, two products, with biases; two norms.
LAYER = 4 * (WIDTH * WIDTH + WIDTH) + 8 * WIDTH * WIDTH + 5 * WIDTH + 4 * WIDTH
HEAD = 10 * WIDTH + 10


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ddp_reduces_once_a_step(accumulate: int) -> None:
    options = f"--width {WIDTH} --layers {LAYERS} --accumulate {accumulate}".split()
    captured = capture_ranks(LOOP, 4, [0], arguments=options)
    messages = captured.steps[0].messages.values()
    assert {m.kind for m in messages} == {"all_reduce"}
    assert sum(m.bytes for m in messages) == 4 * (LAYERS * LAYER + HEAD)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_fsdp_gathers_each_layer() -> None:
    options = f"--width {WIDTH} --layers {LAYERS} --fsdp".split()
    captured = capture_ranks(LOOP, 4, [0], arguments=options)
    messages = list(captured.steps[0].messages.values())
    gathers = [m.bytes for m in messages if m.kind == "all_gather"]
    assert gathers.count(2 * LAYER) == 2 * LAYERS
    assert sum(m.bytes == 2 * LAYER for m in messages if m.kind == "reduce_scatter") == LAYERS
