"""Steps that were measured on an H100, against their simulation: the quick ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import h100
from benchmarks.h100 import Step


def step(model: str, batch: int) -> Step:
    found = [s for s in h100.measured_steps() if (s.model, s.batch) == (model, batch)]
    assert len(found) == 1
    return found[0]


def test_a_step_that_the_device_holds_up_is_as_long_as_its_kernels() -> None:
    answers = h100.answers(step("llama3-8b-4l", 1))
    assert max(map(abs, answers.values())) <= h100.TARGETS["device-bound, fitted"][1]


def test_a_step_that_the_host_holds_up_is_known_from_other_models() -> None:
    found = h100.answers(step("mlp", 4096))
    assert abs(found["fitted"]) <= h100.TARGETS["host-bound, fitted"][1]


@pytest.mark.parametrize("model", ["mlp", "vgg-19", "small"])
def test_a_replayed_step_is_as_long_as_its_kernels(model: str) -> None:
    (found,) = (s for s in h100.replayed_steps() if s.model == model)
    assert abs(h100.replayed(found)) <= h100.TARGETS["replayed"][1]


def test_only_hosts_that_may_have_been_too_far_ahead_are_said_to_have_waited() -> None:
    assert not any(h100.waited(step("gnmt", 64)).values())
    assert h100.waited(step("gpt2-medium", 8)) == {
        "forward": False,
        "backward": True,
        "update": True,
    }


def test_updates_are_those_of_the_step_s_optimizer() -> None:
    kinds = {op.kind for op in step("llama-1b", 4).graph.ops if op.phase == "update"}
    assert kinds == {"adam_update"}
