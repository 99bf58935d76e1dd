"""Small models for plans, all plans of a space, and a check of the bounds of a setup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from simdev.search.plan import Plan, Question, Space, choices_of
from simdev.search.plan.bounds import Bounds
from simdev.search.plan.space import Setup

DENSE = {"model": "llama3.2-1b", "layers": 6, "length": 256}
TIED = {"model": "gpt3-175b", "layers": 5, "length": 256, "hidden": 512, "heads": 8, "inner": 2048}
SPARSE = {
    "model": "mixtral-8x7b", "layers": 5, "length": 256, "hidden": 512, "heads": 8, "kv_heads": 8,
    "inner": 1024, "expert_inner": 512, "dense_layers": 1,
}  # fmt: skip


def space_of(question: Question, options: Mapping[str, Any]) -> Space:
    """The space of plans of a question under the options."""
    return Space(question.model, question.devices, question.global_batch, choices_of(options))


def every_plan(space: Space) -> list[Plan]:
    """All plans of a space, setup by setup."""
    return [plan for setup in space.setups(Counter()) for plan in space.plans(setup)]


def check_setup(
    bounds: Bounds, setup: Setup, zeros: tuple[int, ...], row: Mapping[str, Any]
) -> None:
    """Asserts that the bounds of a setup do not exceed the figures of its plan in ``row``."""
    exchanged, least, (held, fits) = (
        bounds.exchanged_ps(setup), bounds.setup_ps(setup), bounds.held(setup, zeros),
    )  # fmt: skip
    assert exchanged <= least <= row["step_ps"], setup
    assert held <= row["peak_bytes"], setup
    assert fits or not row["fits"], setup
