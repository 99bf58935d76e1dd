"""DistributedDataParallel as captured: PyTorch's own reducer is the judge, on a world of one real
process over gloo, whose communication hook is shown every bucket.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from rank_steps import names, sent, step_of
from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.measure.capture import capture
from simdev.measure.ranks.joining import joined

Module = nn.Module
MIB = 2**20


class Layers(nn.Sequential):
    """Linear layers of 512 x 512 in float32: 1 MiB each."""

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(*(nn.Linear(512, 512, bias=False, **kwargs) for _ in range(count)))


def loss_of(model: Module) -> Tensor:
    loss: Tensor = model(torch.randn(2, 512)).pow(2).mean()
    return loss


def script(
    make: Callable[[], Module],
    prepare: Callable[[DistributedDataParallel], None] = lambda _: None,
    loss: Callable[[Module], Tensor] = loss_of,
    set_to_none: bool = True,
    **settings: Any,
) -> Callable[[], None]:
    def train() -> None:
        model = DistributedDataParallel(make(), **settings)
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss(model).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none)

    return train


def test_buckets_are_filled_from_the_last_layer() -> None:
    """Worked by hand: of 4 layers of 1 MiB the last alone fills the first bucket, which is closed
    at 1 MiB; the others stay below 25 MiB.
    """
    step = step_of(script(lambda: Layers(4)))
    assert sent(step) == [("all_reduce", MIB), ("all_reduce", 3 * MIB)]
    assert [name for name in names(step) if name.startswith("grad/") and "loss" not in name] == [
        *("grad/3/matmul", "grad/3/matmul_1", "grad/3/mul", "grad/3/all_reduce"),
        *("grad/2/matmul", "grad/2/matmul_1", "grad/2/mul"),
        *("grad/1/matmul", "grad/1/matmul_1", "grad/1/mul"),
        *("grad/0/matmul", "grad/0/mul", "grad/0/all_reduce"),
        *("grad/3/copy", "grad/2/copy", "grad/1/copy", "grad/0/copy"),
    ]


def test_an_all_reduce_comes_behind_its_copies_and_before_what_reads_it() -> None:
    step = step_of(script(lambda: Layers(3)))
    ops = {op["name"]: op for op in step.ops}
    assert ops["grad/2/all_reduce"]["control_inputs"] == ["grad/2/mul"]
    assert ops["grad/2/copy"]["control_inputs"] == ["grad/2/all_reduce"]
    assert ops["grad/0/all_reduce"]["control_inputs"] == ["grad/0/mul", "grad/2/all_reduce"]
    assert ops["grad/2/all_reduce"]["stream"] == ops["grad/0/all_reduce"]["stream"]
    assert "stream" not in ops["grad/2/copy"]


def test_a_given_size_is_that_of_the_first_bucket_too() -> None:
    step = step_of(script(lambda: Layers(4), bucket_cap_mb=2))
    assert sent(step) == [("all_reduce", 2 * MIB)] * 2
    small = step_of(script(lambda: Layers(4), bucket_cap_mb_list=[1, 2]))
    assert [size for _, size in sent(small)] == [MIB, 2 * MIB, MIB]


def drawn(seed: int) -> Callable[[], Module]:
    """A model whose layers have drawn sizes, are not called in the order in which they are
    defined, and of which one is called twice.
    """
    draw = random.Random(seed)
    sizes = [draw.choice((8, 64, 300, 700)) for _ in range(6)]
    order = draw.sample(range(6), 6)

    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.ModuleList(nn.Linear(512, size) for size in sizes)
            self.back = nn.ModuleList(nn.Linear(size, 512) for size in sizes)
            self.norm = nn.LayerNorm(512)

        def forward(self, x: Tensor) -> Tensor:
            for index in (*order, order[0]):
                x = self.norm(x + self.back[index](self.wide[index](x)))
            return x

    return Drawn


def told(buckets: list[list[tuple[int, ...]]]) -> Callable[..., Any]:
    """A communication hook that sends nothing and notes the parameters of every bucket."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch looks at annotations
        buckets.append([tuple(parameter.shape) for parameter in bucket.parameters()])
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    return hook


def really_sent(make: Callable[[], Module], **settings: Any) -> list[list[tuple[int, ...]]]:
    """Shapes of the parameters of every bucket in the fourth step of PyTorch's own."""
    buckets: list[list[tuple[int, ...]]] = []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(make(), **settings)
        model.register_comm_hook(None, told(buckets))
        for _ in range(4):
            buckets.clear()
            loss_of(model).backward()
            model.zero_grad()
    finally:
        dist.destroy_process_group()
    return buckets


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bucket_cap_mb": 1},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"batched_grad_copy": True, "bucket_cap_mb": 2},
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_buckets_are_those_of_pytorch(seed: int, settings: dict[str, Any]) -> None:
    buckets: list[list[tuple[int, ...]]] = []

    def watch(model: DistributedDataParallel) -> None:
        model.register_comm_hook(None, told(buckets))
        model.register_forward_pre_hook(lambda *_: buckets.clear())

    step_of(script(drawn(seed), watch, **settings))
    assert buckets == really_sent(drawn(seed), **settings)
    step = step_of(script(drawn(seed), **settings))
    sizes = [4 * sum(map(count, shapes)) for shapes in buckets]
    assert [size for _, size in sent(step)][: len(sizes)] == sizes


def count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def test_gradients_that_are_views_are_not_copied_back() -> None:
    step = step_of(script(lambda: Layers(2), gradient_as_bucket_view=True))
    kinds = [name.split("/")[-1] for name in names(step)]
    assert "mul" in kinds
    assert "copy" not in kinds
    kept = script(lambda: Layers(2), gradient_as_bucket_view=True, set_to_none=False)
    kinds = [name for name in names(step_of(kept)) if name.startswith("grad/1")]
    assert "grad/1/div" in kinds  # added up in the bucket: divided there
    assert "grad/1/mul" not in kinds


def test_without_sync_gradients_stay() -> None:
    """Three microbatches, of which the last sends."""

    def train() -> None:
        model = DistributedDataParallel(Layers(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with model.no_sync():
                for _ in range(2):
                    loss_of(model).backward()
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    step = step_of(train)
    assert sent(step) == [("all_reduce", MIB)] * 2
    kinds = [op["kind"] for op in step.ops]
    assert kinds.count("matmul") == 3 * (2 + 2 + 1)  # forward, weights, input of layer 1
    assert kinds.count("copy") == 2


class Branch(Layers):
    """Leaves its last layer out."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self)[:-1]:
            x = layer(x)
        return x


def test_unused_parameters() -> None:
    with pytest.raises(InputError, match="find_unused_parameters=True"):
        step_of(script(lambda: Branch(3)))
    # Buckets as given, from the first layers: 1 MiB; then a map of 3 numbers of 4 bytes.
    step = step_of(script(lambda: Branch(3), find_unused_parameters=True))
    assert sent(step) == [("all_reduce", 2 * MIB), ("all_reduce", MIB), ("all_reduce", 12)]
    skipping = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    few = step_of(script(lambda: Branch(3), bucket_cap_mb=1, **skipping))
    assert sent(few) == [("all_reduce", MIB)] * 2 + [("all_reduce", 12)]
    static = step_of(script(lambda: Branch(3), static_graph=True))
    assert [size for _, size in sent(static)] == [MIB, 2 * MIB]


def test_buffers_are_sent_before_the_forward() -> None:
    def make() -> Module:
        return nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512))

    step = step_of(script(make))
    # Mean and variance of 512 channels, and the number of batches.
    assert sent(step)[:2] == [("broadcast", 2 * 512 * 4), ("broadcast", 8)]
    assert names(step).index("1/batch_norm") > names(step).index("copy_2")
    without = step_of(script(make, forward_sync_buffers=False))
    assert {kind for kind, _ in sent(without)} == {"all_reduce"}


@pytest.mark.parametrize("hook", [fp16_compress_hook, bf16_compress_hook])
def test_compressed_gradients(hook: Callable[..., Any]) -> None:
    step = step_of(script(lambda: Layers(2), lambda model: model.register_comm_hook(None, hook)))
    assert sent(step) == [("all_reduce", MIB // 2)] * 2
    restoring = [op for op in step.ops if op["kind"] == "copy" and "stream" in op]
    assert [op["control_inputs"] for op in restoring] == [
        ["grad/1/all_reduce"],
        ["grad/0/all_reduce"],
    ]
    back = [op for op in step.ops if op["kind"] == "copy" and "stream" not in op][-2:]
    assert [restoring[i]["name"] in op["control_inputs"] for i, op in enumerate(back)] == [True] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixed_precision": object()}, r"DistributedDataParallel\(mixed_precision=...\)"),
        ({"device_mesh": None, "make": nn.Embedding}, "sparse gradients"),
    ],
)
def test_what_is_not_covered_is_refused(settings: dict[str, Any], message: str) -> None:
    make = settings.pop("make", None)
    model = (lambda: make(4, 4, sparse=True)) if make else (lambda: Layers(1))
    with pytest.raises(InputError, match=message):
        step_of(script(model, **settings))


@pytest.mark.parametrize("wrap", [lambda hook: hook, fp16_compress_wrapper])
def test_hooks_whose_later_steps_differ_are_refused(wrap: Callable[..., Any]) -> None:
    hook = wrap(powerSGD_hook.powerSGD_hook)
    with pytest.raises(InputError, match="the communication hook powerSGD_hook: not covered"):
        step_of(script(lambda: Layers(1), lambda model: model.register_comm_hook(None, hook)))


def test_fsdp_1_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(FSDP1\): not covered by a capture; use fully_shard"):
        step_of(lambda: FullyShardedDataParallel(Layers(1)) and None)


def test_batch_norm_over_ranks_is_refused() -> None:
    with pytest.raises(InputError, match="SyncBatchNorm: not covered by a capture"):
        step_of(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(4)) and None)


def test_a_joined_script_is_refused() -> None:
    def train() -> None:
        model = DistributedDataParallel(Layers(1))
        with model.join():
            loss_of(model).backward()

    with pytest.raises(InputError, match="DistributedDataParallel: _"):
        step_of(train)


@pytest.mark.parametrize("rows", [64, 2048])  # sending takes longer, computing takes longer
def test_a_script_is_as_simdevs_data_parallelism(rows: int) -> None:
    """Messages and their order are equal, and the step is but for one product: PyTorch's
    backward of a layer makes both of its gradients before the first one is sent.
    """
    layers, devices = 6, 8

    def make() -> Module:
        wide = [nn.Linear(2048, 2048, bias=False) for _ in range(layers)]
        return nn.Sequential(*(part for layer in wide for part in (layer, nn.ReLU())))

    def loss(model: Module, x: Tensor) -> Tensor:
        value: Tensor = model(x).pow(2).mean()
        return value

    step = step_of(
        script(make, loss=lambda model: loss(model, torch.randn(rows, 2048))), size=devices
    )
    own = capture(make(), [torch.randn(rows * devices, 2048)], loss).graph
    graph, strategy = joined([step], [f"gpu:{i}" for i in range(devices)], "script")
    for op in [*graph["ops"], *own["ops"]]:
        # PyTorch copies gradients into buckets and back, and updates all parameters at once; the
        # script draws its batch.
        copies = op["kind"] in ("mul", "copy", "randn") and "grad/loss" not in op["name"]
        if op["phase"] == "update" or copies:
            op["time"] = 0
    ours = simulated(graph, strategy)
    theirs = simulated(own, {"version": 1, "short": "data-parallel"})
    assert sizes_of(ours) == sizes_of(theirs)
    row = ours.trace.task_graph.tasks.name.index("rank 0/grad/10/matmul_1")
    product = ours.trace.finish[row] - ours.trace.start[row]
    if rows == 64:
        assert ours.step_ps - theirs.step_ps == product
    else:
        assert ours.seconds == pytest.approx(theirs.seconds, rel=0.01)


def simulated(graph: Any, strategy: Any) -> Any:
    question = {"version": 1, "graph": graph, "cluster": "dgx-h100", "strategy": strategy}
    return run(load_scenario(question))


def sizes_of(report: Any) -> list[int]:
    """Bytes of all collectives, in the order in which they start."""
    tasks = report.trace.task_graph.tasks
    rows = [row for row in range(len(tasks)) if tasks.kind[row] == "collective"]
    return [int(tasks.bytes[row]) for row in sorted(rows, key=lambda row: report.trace.start[row])]
