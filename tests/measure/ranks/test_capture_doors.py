"""The doors to captures: what becomes of a script or a function, on which machine, with which
settings; the communication and the memory of its modules, worked out by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import simdev
from simdev.execution.scenario import load_scenario
from simdev.measure.ranks import Captured
from simdev.measure.ranks.pretend import Rank
from simdev.measure.ranks.scenario import machine_of, rank_devices, world_of
from simdev.measure.ranks.settings import parse_setting
from simdev.report import Report, run
from simdev.report.advice import FREE, HOSTLESS, advice
from simdev.report.measures.modules import Calls, Modules, folded
from simdev.report.measures.spans import holders
from simdev.report.measures.usage import exposed_ps

WIDTH = 256
BLOCK = 4 * (WIDTH * WIDTH + WIDTH)  # bytes of a linear layer's parameters


def sharded(mesh: Any) -> Any:
    """Two blocks under FSDP2, in float32."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.randn(16, WIDTH), lambda model, batch: model(batch).sum()


@pytest.fixture(scope="module")
def captured() -> Captured:
    return simdev.capture(sharded, mesh={"shard": 4})


@pytest.fixture(scope="module")
def report(captured: Captured) -> Report:
    return run(captured.scenario("dgx-h100", options={"tokens": 64}))


def calls(report: Report) -> dict[tuple[str, str], Calls]:
    return {(each.call, each.phase): each for each in report[Modules].calls}


def test_a_function_is_captured_as_a_step_of_its_mesh(captured: Captured, report: Report) -> None:
    assert captured.world == 4
    assert [step.rank for step in captured.steps] == [0]
    made = calls(report)
    # Each block is gathered in forward, and again in backward, and its gradient is scattered.
    assert made["all_gather", "forward"].calls == made["all_gather", "backward"].calls == 2
    assert made["reduce_scatter", "backward"].calls == 2
    for each in made.values():
        assert each.bytes == each.calls * BLOCK
        assert each.module == "*"


def test_exposed_calls_add_up_to_the_exposed_time_of_the_rank(report: Report) -> None:
    (rank,) = (device for device in report.devices if device.ops)
    exposed = sum(each.exposed_ps for each in report[Modules].calls)
    assert exposed == rank.exposed_ps > 0


def test_memory_of_modules_adds_up_to_the_peak(report: Report) -> None:
    section = report[Modules]
    held = section.memory["*"]
    # A rank has a quarter of both blocks, and two moments of it. The 256 bytes of a bias are
    # rounded up to 512, which its two moments fill.
    assert held["parameters"] == 2 * (WIDTH * WIDTH + 512)
    assert held["optimizer state"] == 2 * (2 * WIDTH * WIDTH + 512)
    peak = max(memory.peak for memory in report.memories)
    assert sum(size for of in section.memory.values() for size in of.values()) == peak


@pytest.mark.parametrize("name", ["gnmt-4x-cpu", "resnet-50-4x-h100-data-parallel"])
def test_exposed_transfers_add_up_in_any_step(name: str) -> None:
    report = run(load_scenario(name))
    _, exposed = exposed_ps(report.paced, report.window)
    together = [device.exposed_ps for device in report.devices if device.ops]
    assert np.isclose(exposed.sum() / report.window.steps, sum(together), rtol=1e-6)


def test_tokens_are_told_by_second(report: Report) -> None:
    assert report.throughput is not None
    assert report.throughput.tokens_per_s == pytest.approx(64 / report.seconds)


def test_advice_is_what_the_changed_scenarios_take(captured: Captured, report: Report) -> None:
    assert report.outcome.scenario is not None
    steps = {each.name: each.step_ps for each in advice(report, report.outcome.scenario)}
    assert steps[HOSTLESS] == run(captured.scenario("dgx-h100", host="none")).step_ps
    bare = run(captured.scenario("dgx-h100", host="none"))
    assert bare.outcome.scenario is not None
    (free,) = (c for c in advice(bare, bare.outcome.scenario) if c.name == FREE)
    # Without hosts and messages the stream of most ops never waits for long.
    graph = bare.trace.task_graph
    stream = graph.tasks.duration[holders(graph)[0]].sum()
    assert stream <= free.step_ps <= bare.step_ps
    assert free.step_ps <= sum(d.busy_ps for d in bare.devices)


def test_a_setting_is_another_capture() -> None:
    kept = simdev.capture(
        sharded, mesh={"shard": 4}, ranks=[0], settings={"reshard_after_forward": False}
    )
    made = calls(run(kept.scenario("dgx-h100")))
    assert ("all_gather", "backward") not in made


def test_modules_are_gathered_as_far_ahead_as_the_setting_says() -> None:
    def gathers(ahead: int) -> list[int]:
        """By block the gathers that are issued before its product, in forward."""
        settings = {"forward_prefetch": ahead}
        (step,) = simdev.capture(sharded, mesh={"shard": 4}, ranks=[0], settings=settings).steps
        kinds = [op["kind"] for op in step.ops if op["phase"] == "forward"]
        products = [place for place, kind in enumerate(kinds) if kind == "linear"]
        return [kinds[:place].count("all_gather") for place in products]

    assert gathers(0) == [1, 2]
    assert gathers(1) == [2, 2]


def test_buckets_of_data_parallelism_are_a_setting() -> None:
    def replicated() -> Any:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        blocks = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
        model = DistributedDataParallel(blocks, bucket_cap_mb=1e-6)
        return model, torch.randn(16, WIDTH), lambda model, batch: model(batch).sum()

    sizes = {}
    for settings in ({}, {"bucket_cap_mb": 25}):
        captured = simdev.capture(replicated, 2, ranks=[0], settings=settings)
        sizes[len(settings)] = [m.bytes for m in captured.steps[0].messages.values()]
    assert len(sizes[0]) > 1
    assert sizes[1] == [sum(sizes[0])] == [2 * BLOCK]


def test_a_setting_of_no_wrapper_is_refused() -> None:
    with pytest.raises(simdev.InputError, match="makes no DistributedDataParallel"):
        simdev.capture(sharded, mesh={"shard": 2}, ranks=[0], settings={"bucket_cap_mb": 1})


@pytest.mark.parametrize("text", ["bucket_cap_mb", "batch=2", "bucket_cap_mb=many"])
def test_settings_are_read_with_care(text: str) -> None:
    with pytest.raises(simdev.InputError):
        parse_setting(text)


def test_settings_are_numbers_and_truth_values() -> None:
    assert parse_setting("reshard_after_forward=False") == ("reshard_after_forward", False)
    assert parse_setting("bucket_cap_mb=12.5") == ("bucket_cap_mb", 12.5)


def test_a_loop_that_marks_its_steps_is_captured_between_the_marks() -> None:
    def marked() -> None:
        import torch

        weight = torch.randn(8, 8)
        for _ in range(3):
            weight = weight @ weight
            simdev.step_ends()

    captured = simdev.capture(marked, world=1)
    assert [op["kind"] for op in captured.steps[0].ops if "matmul" in op["kind"]] == ["matmul"]


def test_a_function_that_makes_something_else_is_refused() -> None:
    def model() -> Any:
        return "model"

    with pytest.raises(simdev.InputError, match=r"model: rank 0: must return None or \(model"):
        simdev.capture(model, world=1)


def test_a_preset_has_as_many_gpus_as_ranks() -> None:
    gpus: Callable[[int], int] = lambda world: len(  # noqa: E731
        [d for d in machine_of("dgx-h100", world)[1].devices if d.runs_ops]
    )
    assert [gpus(world) for world in (1, 4, 8, 16, 24)] == [1, 4, 8, 16, 24]
    assert gpus(9) == 16  # not equally many on two machines, so whole ones


def test_accelerators_get_an_eager_host_unless_the_cluster_tells() -> None:
    assert machine_of("dgx-h100", 8)[1].host.mode == "eager"  # type: ignore[union-attr]
    graphs = {"preset": "dgx-h100", "host": {"mode": "graph"}}
    assert machine_of(graphs)[1].host.mode == "graph"  # type: ignore[union-attr]
    assert machine_of(graphs, host="none")[1].host.mode == "none"  # type: ignore[union-attr]


def test_ranks_fill_nodes_as_torchrun_does() -> None:
    _, cluster = machine_of({"preset": "dgx-h100", "nodes": 2})
    assert rank_devices(cluster, 6, 3) == ["gpu:0", "gpu:1", "gpu:2", "gpu:8", "gpu:9", "gpu:10"]
    assert world_of(cluster).size == 16
    assert world_of(cluster, 4).per_node == 4
    assert world_of(cluster).memory == 80 * 2**30
    with pytest.raises(simdev.InputError, match="17 ranks, 8 on a node, do not fit"):
        world_of(cluster, 17)
    with pytest.raises(simdev.InputError, match="9 on a node"):
        rank_devices(cluster, 9, 9)


def test_a_mesh_and_a_world_that_differ_are_refused() -> None:
    with pytest.raises(simdev.InputError, match="mesh: has 4 ranks, the world 8"):
        simdev.capture(sharded, 8, mesh={"shard": 4})


def test_a_missing_script_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(simdev.InputError, match="no such file"):
        simdev.capture(tmp_path / "train.py", world=2)


def test_without_torch_the_door_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(vars(simdev), "capture", raising=False)
    with pytest.raises(simdev.InputError, match=r"needs PyTorch: pip install .simdev\[torch\]"):
        _ = simdev.capture


def test_layers_are_folded_and_wrappers_left_out() -> None:
    assert folded("layers/3/_checkpoint_wrapped_module/attention/wq") == "layers/*/attention/wq"
    assert folded("block2/10") == "block2/*"
    assert folded("") == "the model itself"


def alone(read: Callable[[], int]) -> Callable[[], Any]:
    """A step in which rank 5 alone does more than the others; ``read`` brings the script its
    rank.
    """

    def step() -> Any:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        rank = read()

        def loss(model: Any, batch: Any) -> Any:
            made = model(batch)
            return (made.tanh() if rank == 5 else made).sum()

        return DistributedDataParallel(torch.nn.Linear(8, 8)), torch.randn(4, 8), loss

    return step


def by_torch() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def by_environment() -> int:
    return int(os.environ["RANK"])


def test_a_rank_that_a_script_compares_with_its_own_is_looked_at() -> None:
    captured = simdev.capture(alone(by_torch), world=16)
    assert [step.rank for step in captured.steps] == [0, 5]
    assert captured.compared == (1, 8, 15)
    # How the script reads the environment stays hidden: there, a look at all ranks finds it.
    assert [step.rank for step in simdev.capture(alone(by_environment), world=16).steps] == [0]
    whole = simdev.capture(alone(by_environment), world=16, compare_all=True)
    assert [step.rank for step in whole.steps] == [0, 5]
    assert whole.compared == (*range(1, 5), *range(6, 16))


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda rank: rank == 3, {3}),
        (lambda rank: rank != 3, {3}),
        (lambda rank: rank < 3, {2, 3}),
        (lambda rank: rank <= 3, {3, 4}),
        (lambda rank: rank in (3, 9), {3, 9}),
        (lambda rank: f"{rank}{[7][rank - 5]}", set()),
    ],
)
def test_a_rank_notes_where_an_answer_turns(ask: Callable[[int], Any], named: set[int]) -> None:
    Rank.named.clear()
    assert ask(Rank(5)) == ask(5)
    assert Rank.named == named
