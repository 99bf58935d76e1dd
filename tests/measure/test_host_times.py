"""The host's times of a step: phases without waits, split over operators as the profiler saw them.

No GPU is needed: the profiler of the CPU build shows the same calls, and a device that only counts
stands in for one that makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import any_models  # noqa: E402
from captures import conv_net, lstm  # noqa: E402
from simdev.costs import PHASE_CODES  # noqa: E402
from simdev.measure import host  # noqa: E402
from simdev.measure.building import flat_step  # noqa: E402
from simdev.measure.capture import Capture, capture  # noqa: E402
from simdev.measure.host import (  # noqa: E402
    BREATH_NS,
    Breather,
    HostTimes,
    Span,
    StepParts,
    measure_host,
    ops_of_phase,
    split,
)
from simdev.measure.operators import Conditions  # noqa: E402
from simdev.measure.steps import Measured, Step, StepTimer, measure_together  # noqa: E402
from simdev.measure.tracing import optimizer_named  # noqa: E402
from simdev.nouns.graph import PHASES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BUILDERS = [conv_net, lstm, any_models.multihead, any_models.autocast, any_models.checkpointed]


def parts_of(build: Callable[[], Any]) -> tuple[StepParts, Capture]:
    module, batch, loss = build()
    tensors, flat = flat_step(module.train(), batch, loss)
    captured = capture(module, tensors, flat)
    clear = partial(module.zero_grad, set_to_none=True)
    step = StepParts(module, lambda: flat(module, *tensors), optimizer_named("adam"), clear)
    return step, captured


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_the_profiler_shows_every_call_of_a_step(build: Callable[[], Any]) -> None:
    step, captured = parts_of(build)
    times = measure_host(step, captured, lambda: None, count=1, profiled=1)
    assert times.matched == 1
    assert set(times.of_call) == set(captured.calls)
    assert all(value > 0 for value in times.of_call.values())


def test_the_operators_of_a_phase_sum_to_it() -> None:
    step, captured = parts_of(conv_net)
    times = measure_host(step, captured, lambda: None, count=3, profiled=2)
    for phase, taken in times.phases.items():
        code = PHASE_CODES[phase]
        whole = sum(
            captured.counts[key] * value
            for key, value in times.of_call.items()
            if captured.rows[key]["phase"] == code
        )
        assert whole == pytest.approx(sorted(taken)[1], rel=1e-9)
    header = times.header(captured)
    assert [header["phases"][phase]["ops"] for phase in PHASES] == [
        ops_of_phase(captured, phase) for phase in PHASES
    ]


def test_a_step_leaves_no_gradient_that_it_would_add_to() -> None:
    step, captured = parts_of(conv_net)
    before = [parameter.clone() for parameter in step.module.parameters()]
    measure_host(step, captured, lambda: None, count=1, profiled=1)
    # The update runs on twins of one element: the module's parameters stay.
    assert all(map(torch.equal, before, step.module.parameters()))


# Where the device makes the host wait.


class FakeClock:
    """A host's clock that moves by what is said: each wait for the device takes 5 ms."""

    def __init__(self) -> None:
        self.now, self.waits = 0, 0

    def __call__(self) -> int:
        return self.now

    def synchronize(self) -> None:
        self.waits += 1
        self.now += 5_000_000


def test_waits_are_not_the_host_s_time() -> None:
    clock = FakeClock()
    breather = Breather(clock.synchronize, clock)
    start = breather.start()
    for _ in range(10):
        clock.now += BREATH_NS // 2
        breather.breathe()
    assert breather.spent(start) == 10 * BREATH_NS // 2
    # Half of the times too little had passed to fill a queue.
    assert clock.waits == 1 + 5


def test_modules_breathe_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BREATH_NS", 0)
    monkeypatch.setattr(host, "MOST_UNWATCHED", 0)
    step, captured = parts_of(any_models.frozen)
    waits: list[int] = []
    measure_host(step, captured, lambda: waits.append(1), count=1, profiled=1)
    # Three modules and the one around them, forward and backward, and the starts of phases.
    assert len(waits) > 3 * (4 + 2)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


# The split of a phase.


def spans(*events: tuple[int, int, str]) -> list[Span]:
    return sorted(Span(*event) for event in events)


WITHIN = Span(0, 100, "simdev::forward")


def test_what_python_does_before_a_call_is_that_call_s() -> None:
    seen = spans((10, 20, "aten::mm"), (50, 60, "aten::add"))
    assert split(WITHIN, seen, ["aten::mm", "aten::add"]) == [20, 80]


def test_a_call_within_a_call_is_no_call_of_the_step() -> None:
    seen = spans((10, 40, "aten::cast"), (20, 30, "aten::copy_"), (50, 60, "aten::copy_"))
    assert split(WITHIN, seen, ["aten::cast", "aten::copy_"]) == [40, 60]


def test_a_wait_for_the_device_is_nobody_s() -> None:
    seen = spans((10, 20, "aten::mm"), (30, 70, "simdev::wait"), (80, 90, "aten::mm"))
    assert split(WITHIN, seen, ["aten::mm", "aten::mm"]) == [20, 40]


def test_a_call_that_is_not_shown_loses_no_other() -> None:
    seen = spans((10, 20, "aten::mm"), (80, 90, "aten::add_"))
    assert split(WITHIN, seen, ["aten::mm", "aten::gone", "aten::add"]) == [20, None, 80]


# In a profile.


def measured_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Capture, Measured]:
    step = conv_net()
    captured = capture(*step)
    conditions = Conditions("cpu", "test-1core", 0.1)

    def host_of(self: StepTimer) -> HostTimes:
        parts = StepParts(
            self.module,
            lambda: self.step.loss(self.module, *self.inputs),
            self.update,
            lambda: None,
        )
        return measure_host(parts, self.step.captured, lambda: None, count=1, profiled=1)

    monkeypatch.setattr(StepTimer, "host", host_of)
    monkeypatch.setattr(StepTimer, "measure_row", lambda _: None)
    monkeypatch.setattr("simdev.measure.steps.has_host", lambda _: True)
    whole = Step(captured, *step, "sgd-momentum")
    return captured, measure_together([whole], conditions)


def test_rows_and_header_tell_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, result = measured_as_on_a_gpu(monkeypatch)
    assert all(row["host_step_ns"] > 0 for row in result.rows)
    assert set(result.host["phases"]) == set(PHASES)
    assert "ahead" not in result.host
    sums = sum(captured.count_of(row) * row["host_step_ns"] for row in result.rows)
    told = sum(part["host_s"] for part in result.host["phases"].values())
    assert sums / 1e9 == pytest.approx(told, rel=0.01)


def test_a_host_that_cannot_be_timed_costs_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: StepTimer) -> None:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(StepTimer, "measure_row", refused)
    monkeypatch.setattr("simdev.measure.steps.has_host", lambda _: True)
    step = conv_net()
    captured = capture(*step, name="net")
    whole = Step(captured, *step, "sgd-momentum")
    result = measure_together([whole], Conditions("cpu", "test-1core", 0.1))
    assert len(result.rows) == len(captured.calls)
    assert result.unmeasured == ["host of net: no profiler here"]


def test_a_cpu_tells_what_stands_between_its_operators() -> None:
    step = conv_net()
    whole = Step(capture(*step), *step, "sgd-momentum")
    result = measure_together([whole], Conditions("cpu", "test-1core", 0.1))
    assert all("host_step_ns" not in row for row in result.rows)
    assert result.host["ahead"] == 1
    told = {phase: part["host_s"] for phase, part in result.host["phases"].items()}
    rest = max(0.0, result.step["measured_step_s"] - result.step["sum_of_ops_s"])
    assert sum(told.values()) == pytest.approx(rest, abs=3e-9)
    assert set(told) == set(PHASES)
