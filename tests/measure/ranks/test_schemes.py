"""FSDP2 in its variants, checkpoints, autocast and context parallelism as captured: messages and
ops worked out by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel

from rank_steps import names, sent, step_of
from simdev.ground.errors import InputError
from simdev.measure.ranks.writing import RankStep

WIDTH, LAYERS = 64, 3
WEIGHT = 4 * WIDTH * WIDTH


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.relu(self.linear(x))
        return result


def layers() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def train(
    model: Callable[[], nn.Module] = layers,
    prepare: Callable[[nn.Module], object] = lambda _: None,
    parts: int = 1,
    mesh: Sequence[int] = (4,),
    autocast: bool = False,
    **settings: Any,
) -> Callable[[], None]:
    """A script that shards every layer; ``parts`` batches a step, all but the last without sync."""

    def script() -> None:
        dims = ("replicate", "shard")[-len(mesh) :]
        ranks = device_mesh.init_device_mesh("cuda", tuple(mesh), mesh_dim_names=dims)
        net: Any = model()
        for layer in net:
            fully_shard(layer, mesh=ranks, **settings)
        fully_shard(net, mesh=ranks, **settings)
        prepare(net)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            for part in range(parts):
                net.set_requires_gradient_sync(part == parts - 1)
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    loss = net(torch.randn(2, WIDTH, device="cuda")).sum()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return script


def grouped(step: RankStep) -> list[tuple[str, int, int]]:
    """(kind, bytes, ranks) of all messages, sorted."""
    return sorted((m.kind, m.bytes, len(m.group)) for m in step.messages.values())


def test_hybrid_sharding_scatters_within_and_reduces_between_groups() -> None:
    step = step_of(train(mesh=(2, 2)))
    gathers = [("all_gather", WEIGHT, 2)] * (2 * LAYERS - 1 + 1)
    shares = [("all_reduce", WEIGHT // 2, 2)] * LAYERS
    scatters = [("reduce_scatter", WEIGHT, 2)] * LAYERS
    assert grouped(step) == gathers + shares + scatters
    assert {m.group for m in step.messages.values()} == {(0, 1), (0, 2)}


def test_the_part_of_a_rank_lies_in_the_buffer_that_is_gathered() -> None:
    copies = [op for op in step_of(train()).ops if op["kind"] == "all_gather_copy_in"]
    assert copies
    for op in copies:
        part, buffer = op["outputs"]
        assert (part["bytes"], buffer["view_of"]) == (WEIGHT, 0)
        assert "view_of" not in part


@pytest.mark.parametrize(("reshards", "gathers"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_scattered_once_however_many_batches(
    reshards: bool, gathers: int, parts: int
) -> None:
    """Parameters that are not resharded stay until its backward."""
    step = step_of(train(parts=parts, reshard_after_forward=reshards))
    kinds = [kind for kind, _ in sent(step)]
    assert kinds.count("reduce_scatter") == LAYERS
    assert kinds.count("all_gather") == LAYERS * gathers * parts


def test_without_a_mesh_all_ranks_share_a_module() -> None:
    def script() -> None:
        net = layers()
        fully_shard(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            net(torch.randn(2, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    # The root is kept from its forward to its backward.
    assert sent(step_of(script)) == [
        ("all_gather", LAYERS * WEIGHT),
        ("reduce_scatter", LAYERS * WEIGHT),
    ]


def test_a_mesh_of_a_tensor_is_refused() -> None:
    def making() -> Any:
        ranks: Any = torch.arange(4).view(2, 2)
        return device_mesh.DeviceMesh("cuda", ranks)

    with pytest.raises(InputError, match="DeviceMesh: the values of a tensor of ranks"):
        step_of(making)


def test_resharding_to_fewer_ranks_gathers_from_these() -> None:
    step = step_of(train(reshard_after_forward=2))
    gathers = [m.group for m in step.messages.values() if m.kind == "all_gather"]
    assert gathers == [(0, 1, 2, 3)] * LAYERS + [(0, 1)] * LAYERS


def test_mixed_precision_gathers_in_two_bytes_and_reduces_in_four() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    step = step_of(train(mp_policy=policy))
    assert set(sent(step)) == {("all_gather", WEIGHT // 2), ("reduce_scatter", WEIGHT)}


def test_prefetch_gathers_a_layer_before_the_one_before_it_computes() -> None:
    def prefetching(net: Any) -> None:
        for layer, following in pairwise(net):
            layer.set_modules_to_forward_prefetch([following])

    places = []
    for step in (step_of(train()), step_of(train(prepare=prefetching))):
        order = names(step)
        places.append([order.index(name) for name in ("1/linear/all_gather", "0/linear/matmul")])
    assert places[0][0] > places[0][1]
    assert places[1][0] < places[1][1]


def test_checkpoints_compute_forwards_again_in_the_backward() -> None:
    def wrapped() -> nn.Sequential:
        return nn.Sequential(*map(checkpoint_wrapper, layers()))

    plain, again = (step_of(train(model)) for model in (layers, wrapped))
    assert not any("wrapped" in name for name in names(again))
    counts = [Counter(op["kind"] for op in step.ops) for step in (plain, again)]
    assert counts[1] - counts[0] == Counter(matmul=LAYERS, relu=LAYERS)
    assert not counts[0] - counts[1]


def test_autocast_computes_in_two_bytes() -> None:
    step = step_of(train(autocast=True))
    products = [op for op in step.ops if op["kind"] == "matmul"]
    assert {op["outputs"][0]["dtype"] for op in products} == {"bfloat16"}


def test_a_copy_to_the_host_waits_for_its_stream_and_a_literal_is_no_kernel() -> None:
    def script() -> None:
        net = layers()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            x = torch.randn(2, WIDTH, device="cuda") * torch.tensor(2.0, device="cuda")
            x[x < 0] = 0.0
            loss = net(x).sum()
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.neg(x)
            loss.detach().cpu()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    ops = step_of(script).ops
    assert not [op for op in ops if "lift" in op["kind"]]
    (wait,) = [op for op in ops if op.get("blocks_host")]
    assert wait["control_inputs"] == ["loss/sum"]
    assert [op["kind"] for op in ops[ops.index(wait) - 2 : ops.index(wait)]] == ["sum", "neg"]


def test_no_number_is_none_or_infinite() -> None:
    """A script that stops at such a loss goes on, and a gradient scaler skips no step."""

    def script() -> None:
        net = layers()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = net(torch.randn(2, WIDTH, device="cuda")).sum()
            if torch.isnan(loss) or torch.isinf(loss).any().item() or not torch.isfinite(loss):
                raise RuntimeError("diverged")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert "update" in {op["phase"] for op in step_of(script).ops}


def test_compiled_layers_run_eagerly_with_a_note() -> None:
    def compiled() -> nn.Sequential:
        net = layers()
        net[0].compile()
        return nn.Sequential(*map(torch.compile, net))

    step = step_of(train(compiled))
    assert names(step) == names(step_of(train()))
    assert all("torch.compile is passed over" in note for note in step.notes)
    assert step.notes


def test_context_parallelism_gathers_keys_and_values() -> None:
    """A rank gathers the keys and values of all, and sends each its share of their gradients."""
    rows, length, heads = 2, 32, 4

    def script() -> None:
        ranks = device_mesh.init_device_mesh("cuda", (4,), mesh_dim_names=("cp",))
        project = nn.Linear(WIDTH, 3 * WIDTH, bias=False, dtype=torch.bfloat16, device="cuda")
        optimizer = torch.optim.SGD(project.parameters(), 0.1)
        for _ in range(2):
            x = torch.randn(rows, length, WIDTH, device="cuda", dtype=torch.bfloat16)
            with context_parallel(ranks, buffers=[x], buffer_seq_dims=[1]):
                parts = project(x).chunk(3, -1)
                q, k, v = (t.view(rows, -1, heads, WIDTH // heads).transpose(1, 2) for t in parts)
                F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    step = step_of(script)
    both = 2 * 2 * rows * length * WIDTH
    assert sent(step)[:2] == [("all_gather", both)] * 2
    assert {kind for kind, _ in sent(step)[2:]} == {"all_to_all"}
    attention = [op for op in step.ops if "attention" in op["kind"]]
    # Its part of the first rows and of the last ones, with all others' that these may see.
    assert [op["outputs"][0]["shape"][2] for op in attention] == [8, 4, 4, 4] * 2


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: CPUOffloadPolicy(), "CPUOffloadPolicy"),
        (lambda: torch.autograd.graph.save_on_cpu(), "save_on_cpu"),
    ],
)
def test_memory_of_the_host_is_refused(use: Callable[[], object], name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: .*memory of the host"):
        step_of(use)  # type: ignore[arg-type]


def test_a_rank_alone_copies_what_it_would_gather() -> None:
    """A sum in place is there already, and whoever reads it still reads what made it."""

    def script() -> None:
        alone = device_mesh.init_device_mesh("cuda", (4, 1), mesh_dim_names=("dp", "tp"))["tp"]
        net = layers()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            x = net(torch.randn(2, WIDTH, device="cuda"))
            with torch.no_grad():
                y = torch.neg(x)
                dist.all_reduce(y, group=alone.get_group())
                z = torch.empty_like(y)
                dist.all_gather([z], y, group=alone.get_group())
                torch.exp(z)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    ops = {op["name"]: op for op in step_of(script).ops}
    assert not [op for op in ops.values() if op["kind"].startswith("all_")]
    assert ops["loss/clone"]["inputs"] == ["loss/neg"]
    assert ops["loss/exp"]["inputs"] == ["loss/clone"]


def test_the_gradient_of_a_view_belongs_to_the_module_of_the_view() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.expand(x.shape)

    def script() -> None:
        net = nn.Sequential(Scale())
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            net(torch.randn(2, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert "grad/0/sum" in names(step_of(script))
