"""Steps of ranks, written by hand, as one graph: roots, streams, and what a host waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

from rank_steps import step_of
from simdev import load_scenario, run
from simdev.measure.ranks.joining import joined
from simdev.measure.ranks.recording import Message
from simdev.measure.ranks.writing import RankStep

SIZE = 8 * 10**6


def step(
    rank: int, kind: str, group: tuple[int, ...], root: int | None = None, **call: Any
) -> RankStep:
    """A product of 10 us, a message in place of what it makes, a product behind the message."""
    product = {"kind": "matmul", "phase": "forward", "time": "10 us"}
    made = {"name": "first", "outputs": [{"bytes": SIZE}], **product}
    sent = {
        "name": "call", "kind": kind, "phase": "forward", "inputs": ["first"],
        "control_inputs": ["first"], "outputs": [{"bytes": 0}], **call,
    }  # fmt: skip
    last = {"name": "last", "inputs": ["first"], "control_inputs": ["call"], **product}
    message = Message(kind, group, SIZE, root, rank == root, 0, "train.py:1", "0")
    return RankStep(rank, [made, sent, last], {1: message}, ())


def joint(*steps: RankStep) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The op of the message, the graph and the strategy."""
    graph, strategy = joined(steps, [f"gpu:{i}" for i in range(8)], "step")
    (call,) = [op for op in graph["ops"] if "ranks" in op.get("attrs", {})]
    return call, graph, strategy


def ends(graph: dict[str, Any], strategy: dict[str, Any], host: str = "none") -> dict[str, float]:
    """By name the end of each task in us."""
    cluster = {"preset": "dgx-h100", "host": {"mode": host}}
    scenario = {"version": 1, "graph": graph, "cluster": cluster, "strategy": strategy}
    trace = run(load_scenario(scenario)).trace
    return dict(zip(trace.task_graph.tasks.name, (trace.finish / 10**6).tolist(), strict=True))


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_of_a_broadcast_comes_first(root: int) -> None:
    call, graph, strategy = joint(*(step(rank, "broadcast", (0, 1), root) for rank in range(2)))
    assert call["attrs"]["ranks"] == [f"gpu:{root}", f"gpu:{1 - root}"]
    assert call["inputs"] == [f"rank {root}/first:0"]
    assert len(call["outputs"]) == 1
    times = ends(graph, strategy)
    assert times[f"rank {1 - root}/last"] == times[call["name"]] + 10


def test_the_root_of_a_broadcast_need_not_be_there() -> None:
    steps = [step(rank, "broadcast", (0, 1, 2, 3), 2) for rank in range(2)]
    call, graph, strategy = joint(*steps)
    assert call["attrs"]["ranks"] == ["gpu:0", "gpu:1"]
    assert not call["inputs"]
    assert strategy["collectives"]["groups"][call["attrs"]["group"]] == [
        "gpu:2", "gpu:3", "gpu:0", "gpu:1",
    ]  # fmt: skip
    assert ends(graph, strategy)["rank 0/last"] > 20


@pytest.mark.parametrize(
    ("streams", "joint_stream"),
    [(("1", "1"), "all_reduce (1)"), (("1", "2"), None), ((None, None), None)],
)
def test_ranks_that_call_a_stream_alike_share_it(
    streams: Sequence[str | None], joint_stream: str | None
) -> None:
    calls = [{"stream": stream} if stream else {} for stream in streams]
    group = (0, 1)
    call, _, _ = joint(*(step(r, "all_reduce", group, **calls[r]) for r in range(2)))
    assert call.get("stream") == joint_stream


def test_a_host_waits_for_a_collective_and_the_program_holds_what_it_read() -> None:
    fields = {"blocks_host": True, "releases": ["first"]}
    call, graph, strategy = joint(*(step(r, "all_reduce", (0, 1), **fields) for r in range(2)))
    assert call["releases"] == ["rank 0/first:0", "rank 1/first:0"]
    times = ends(graph, strategy, "eager")
    # Nobody dispatches the last product before the collective has ended.
    assert all(times[f"dispatch rank {r}/last"] > times[call["name"]] for r in range(2))


def test_a_host_dispatches_on_until_the_script_waits() -> None:
    """An event of another stream is waited for two ops after the one that it marks: 100 us."""
    import torch

    def script() -> None:
        net = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            x, event = torch.randn(4, 4, device="cuda"), torch.cuda.Event()
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.neg(x)
                event.record()
            y = x.exp().sin()
            event.synchronize()
            net(y.tanh()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    made = step_of(script)
    for op in made.ops:
        if op["kind"] not in ("host", "parameter", "input"):
            op |= {"time": "100 us" if op["kind"] == "neg" else "1 us", "host_time": "5 us"}
    times = ends(*joined([made], ["gpu:0"], "step"), "eager")
    named = {op["kind"]: f"rank 0/{op['name']}" for op in made.ops}
    assert times[f"dispatch {named['sin']}"] == times[f"dispatch {named['neg']}"] + 10
    assert times[f"dispatch {named['tanh']}"] == times[named["neg"]] + 5
