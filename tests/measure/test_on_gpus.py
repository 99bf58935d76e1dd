"""What measuring does on a GPU only, on devices that fakes stand in for."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from simdev.ground.errors import InputError  # noqa: E402
from simdev.measure import timers  # noqa: E402
from simdev.measure.profiles import LIMITS, capture_grid, capture_product, points  # noqa: E402
from simdev.measure.record import Call, Slot, TensorSpec  # noqa: E402
from simdev.measure.timers import (  # noqa: E402
    Samples,
    make_inputs,
    needs_real,
    of_one_call,
    thunk_on,
)

# Kernels of several calls.


def test_kernels_are_those_of_the_middle_call() -> None:
    events = [(10 * i, time) for i, time in enumerate([5, 7, 5, 900, 6, 7])]
    assert of_one_call(events, 3) == (2, 13)  # of 12, 905 and 13
    assert of_one_call(list(reversed(events)), 3) == (2, 13)  # by their starts


def test_calls_that_launch_unlike_are_told_by_their_mean() -> None:
    assert of_one_call([(0, 10), (1, 10), (2, 10), (3, 10), (4, 20)], 2) == (2, 30)
    assert of_one_call([], 9) == (0, 0)


# Inputs are made where they are used.


class FakeGenerator:
    """Stands in for a generator of a device that is not there."""

    made: ClassVar[list[str]] = []

    def __init__(self, device: str) -> None:
        self.made.append(device)

    def manual_seed(self, seed: int) -> None:
        return None


def test_random_inputs_are_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(timers.torch, "Generator", FakeGenerator)
    for name in ("randn", "rand", "randint"):
        made = getattr(torch, name)

        def watched(*args: Any, _made: Any = made, **options: Any) -> Any:
            seen.append(str(options["device"]))
            return _made(*args, **options)

        monkeypatch.setattr(timers.torch, name, watched)
    specs = tuple(
        TensorSpec((4, 3), (3, 1), dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn)
    )
    call = Call(None, tuple(map(Slot, range(5))), {}, specs, ())
    with FakeTensorMode():
        made = make_inputs(call, "meta", 0)
    assert seen == ["meta"] * 5
    assert FakeGenerator.made == ["meta"]
    assert [tensor.dtype for tensor in made] == [spec.dtype for spec in specs]


@pytest.mark.parametrize(
    ("func", "dtypes", "expected"),
    [
        ("embedding", (torch.float32, torch.int64), False),
        ("add.Tensor", (torch.int64, torch.int64), False),
        ("relu", (torch.float32,), False),
        ("gather", (torch.float32, torch.int64), True),
        ("mkldnn_rnn_layer_backward", (torch.float32, torch.uint8), True),
        ("_ctc_loss", (torch.float32, torch.int64), True),
    ],
)
def test_operators_with_values_that_cannot_be_made_up(
    func: str, dtypes: tuple[Any, ...], expected: bool
) -> None:
    name, _, overload = func.partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    specs = tuple(TensorSpec((4,), (1,), dtype) for dtype in dtypes)
    assert needs_real(Call(op, tuple(map(Slot, range(len(dtypes)))), {}, specs, ())) is expected


# Products in float8.


def test_a_product_in_float8_is_a_matmul_of_its_dtype() -> None:
    point = next(islice(points("gemm", LIMITS["cpu"]), 1))
    captured = capture_product(point, "cpu")
    (row,) = captured.rows.values()
    assert (row["op"], row["phase"]) == ("matmul", "fwd")
    assert row["dt"] == ["float8_e4m3fn"] * 2
    assert row["attrs"] == {"transpose_b": True}
    assert all(extent % 16 == 0 for shape in row["in"] for extent in shape)
    (call,) = captured.calls.values()
    assert len(call.specs) == 4  # with a scale for each
    assert isinstance(thunk_on(call, make_inputs(call, "cpu", 0)).func, torch._ops.OpOverload)


@pytest.mark.parametrize(
    ("names", "device", "dtype", "message"),
    [
        (["gemm"], "cpu", "float8_e4m3fn", "measured on a CUDA device"),
        (["conv"], "cuda", "float8_e4m3fn", "of products alone"),
        (["gemm"], "cuda", "float8_e5m2", "float8_e4m3fn alone"),
        (["gemm"], "cuda", "float8_e4m3fn", "compute capability 8.9, this one's is 8.0"),
    ],
)
def test_float8_is_refused_where_the_library_has_no_product(
    names: list[str],
    device: str,
    dtype: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(InputError, match=message):
        capture_grid(names, 1, device, dtype)


def test_models_are_built_on_the_device() -> None:
    from simdev.measure.building import Chosen, built

    made: list[str] = []

    def build() -> Any:
        tensors = torch.ones(3), torch.tensor([1.0])
        made.extend(tensor.device.type for tensor in tensors)
        return torch.nn.Linear(3, 1), tensors, lambda m, *data: m(data[0]).sum()

    built(Chosen("t", build, {}, "adam"), "t", "meta")
    assert made == ["meta", "meta"]

    def picky() -> Any:
        order = torch.arange(3)
        made.append(order.device.type)
        if order.device.type != "cpu":
            raise RuntimeError("a loader shuffles with a generator of the host")
        return torch.nn.Linear(3, 1), (order,), lambda m, x: m(x.float()).sum()

    built(Chosen("t", picky, {}, "adam"), "t", "meta")
    assert made[2:] == ["meta", "cpu"]


# Steps in a row, as training runs them.


def test_steps_in_a_row_tell_their_wall_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from simdev.measure import steps
    from simdev.measure.capture import capture
    from simdev.measure.steps import ROW_STEPS, STEP_WARM_UPS, StepTimer
    from simdev.measure.torch_models.classifiers import mlp

    ticks = iter([10.0, 10.0 + 3 * ROW_STEPS])
    ran: list[int] = []
    monkeypatch.setattr(steps.time, "perf_counter", lambda: next(ticks))
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name, value in (("memory_allocated", 5), ("max_memory_allocated", 70)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 90)
    module, batch, loss = mlp(batch=2, width=4, layers=1)
    captured = capture(module, batch, loss)
    step = steps.Step(
        captured, module, batch, lambda m, *data: ran.append(1) or loss(m, *data), "adam"
    )
    counted = StepTimer(step, "cpu")
    counted.run(1)
    counted.measure_row()
    assert len(ran) == 1 + STEP_WARM_UPS + ROW_STEPS
    report = counted.report([])
    assert (report["wall_s"], report["steps_in_row"]) == (3.0, ROW_STEPS)
    assert report["memory"] == {
        "allocated_before": 5,
        "peak_allocated": 70,
        "peak_reserved": 90,
    }


def test_kernels_that_nobody_saw_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from simdev.measure import operators
    from simdev.measure.capture import capture
    from simdev.measure.operators import IDLE_REPEATS, Conditions, OperatorRun
    from simdev.measure.torch_models.classifiers import mlp

    monkeypatch.setattr(operators, "thunks", lambda *_: [lambda: None])
    monkeypatch.setattr(operators, "workspace_bytes", lambda *_: 7)
    captured = capture(*mlp(batch=2, width=4, layers=1))
    timer: Any = SimpleNamespace(
        device="cuda", method="m", sample=lambda _, reps, __: Samples([5] * reps, [5] * reps, [], 1)
    )
    noise: Any = SimpleNamespace(medians=[0] * (IDLE_REPEATS + 1))

    def shown() -> list[dict[str, int]]:
        run = OperatorRun(captured, timer, noise, Conditions("cuda", "gpu", 0.0), 0.0)
        run.measure()
        rows, left_out = run.rows()
        assert not left_out
        names = ("ws", "launches", "kernel_ns")
        return [{name: row[name] for name in names if name in row} for row in rows]

    count = len(captured.calls)
    monkeypatch.setattr(operators, "cuda_kernels", lambda _: (0, 0))
    assert shown() == [{"ws": 7, "launches": 1}] * count
    monkeypatch.setattr(operators, "cuda_kernels", lambda _: (2, 900))
    assert shown() == [{"ws": 7, "launches": 2, "kernel_ns": 900}] * count
