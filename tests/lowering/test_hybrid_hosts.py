"""Steps of large models under hosts: threads that run ahead, hold up their devices, and wait."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_steps import DENSE, boxes, cluster_for, lowered, report_of
from simdev.commands import main
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import PHASES
from simdev.nouns.models.large import Transformer, large_model, layer, shard_of
from simdev.nouns.models.large.roles import BACKWARD, DISPATCH, FORWARD, UPDATE
from simdev.nouns.strategy.parallelism import Parallelism
from test_hybrid import parallelisms

MS = 10**9  # ps
TIMES = {"forward": "1 ms", "backward": "2.5 ms", "update": "4 ms"}


def told(model: Transformer, **times: str) -> Transformer:
    return replace(model, host_time=times)


def hosted(cluster: Cluster, **fields: object) -> Cluster:
    return replace(cluster, host=Host(**fields))


def step_ps(model: Transformer, p: Parallelism, cluster: Cluster | None = None) -> int:
    return simulate(lowered(model, p, cluster=cluster or cluster_for(p.devices))[0]).end_ps


@settings(max_examples=40, deadline=None, derandomize=True)
@given(parallelisms(), st.sampled_from([1, 60, 1024]), st.integers(0, 400), st.integers(0, 400))
def test_one_device_stands_for_all_under_hosts(
    case: tuple[Transformer, Parallelism], ahead: int, forward: int, backward: int
) -> None:
    """Collapsed or not, by either engine: the same step, valid by the checker."""
    model, p = case
    model = told(model, forward=f"{forward} us", backward=f"{backward} us", update="90 us")
    cluster = hosted(cluster_for(p.devices), ahead=ahead)
    one, every = report_of(model, p, cluster=cluster), report_of(model, p, False, cluster)
    assert one.step_ps == every.step_ps
    assert one.training.large.counted == len(every.trace.start)
    for short, long in zip(one.training.stages, every.training.stages, strict=True):
        assert dict(short.terms) == dict(long.terms)
        assert short.memory.peak == long.memory.peak
        assert sum(short.terms.values()) == one.step_ps
    for report in (one, every):
        assert check(report.trace.task_graph, report.trace) == ()
    assert len(set(every.trace.task_graph.tasks.name)) == len(every.trace.start)
    again = simulate(every.trace.task_graph, "compiled")
    assert (again.start == every.trace.start).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(parallelisms(), st.integers(0, 300), st.integers(0, 300))
def test_hosts_only_hold_up(
    case: tuple[Transformer, Parallelism], forward: int, backward: int
) -> None:
    """No step is shorter than without a host or than with a faster one, nor than its dispatches."""
    model, p = case
    times = {"forward": f"{forward} us", "backward": f"{backward} us"}
    cluster = cluster_for(p.devices)
    steps = [
        step_ps(model, p),
        step_ps(told(model, **times), p, hosted(cluster)),
        step_ps(told(model, **times), p, hosted(cluster, ahead=30)),
        step_ps(told(model, **times, update="50 us"), p, hosted(cluster, ahead=30)),
    ]
    assert steps == sorted(steps)
    turns = p.microbatches * model.layers // p.pp
    assert steps[1] >= turns * (forward + backward) * 10**6


def recurrence(model: Transformer, p: Parallelism, ahead: int) -> int:
    """The step of one device by its two clocks, turn by turn, from the durations of its rows."""
    task_graph, large = lowered(model, p, cluster=hosted(cluster_for(1), ahead=ahead))
    role, duration = large.role, task_graph.tasks.duration
    block = layer(shard_of(model, p), 0)
    counts = {FORWARD: len(block.forward), BACKWARD: len(block.backward + block.weight)}
    times = [int(Fraction(model.host_time[phase]) * 10**12) for phase in PHASES]
    device = thread = launched = 0
    ended: list[tuple[int, int]] = []  # launches before a turn, and its end
    for row in np.flatnonzero(role < UPDATE).tolist():
        if "ends" in task_graph.tasks.name[row]:
            device = max(device, thread) + int(duration[row])
            continue
        assert role[row] in (FORWARD, BACKWARD)
        count = counts[int(role[row])]
        launched += count
        finishes = [end for before, end in ended if launched - before > ahead]
        begin = max(thread, *finishes[-1:], 0)
        device = max(device, begin) + int(duration[row])
        ended.append((launched - count, device))
        thread = begin + times[0 if role[row] == FORWARD else 1]
    begin = max(device, thread)
    return max(begin + int(duration[role == UPDATE].sum()), begin + times[2])


@pytest.mark.parametrize("ahead", [1, 24, 40, 100, 1024])
@pytest.mark.parametrize("times", [(1, 2, 3), (60, 20, 5), (150, 700, 900), (20, 700, 1)])
def test_a_device_and_its_thread_are_two_clocks(times: tuple[int, ...], ahead: int) -> None:
    """Against a recurrence of the two, which counts the launches of a layer by its loads."""
    us = dict(zip(PHASES, (f"{time} us" for time in times), strict=True))
    model, p = told(DENSE, **us), Parallelism(microbatches=3, flash=True)
    cluster = hosted(cluster_for(1), ahead=ahead)
    assert step_ps(model, p, cluster) == recurrence(model, p, ahead)


def test_slow_hosts_are_all_there_is() -> None:
    """A pipeline of hosts: its slots, as Megatron-LM's threads wait for what they receive."""
    p = Parallelism(pp=4, microbatches=8)
    plain = step_ps(DENSE, p)
    slow = step_ps(told(DENSE, forward="300 ms", backward="500 ms"), p, hosted(cluster_for(4)))
    slots = 8 + 4 - 1
    assert slots * 2 * 800 * MS <= slow < slots * 2 * 800 * MS + plain


def test_a_cuda_graph_is_launched_once() -> None:
    """The whole step one launch later, whatever its layers would take to dispatch."""
    p = Parallelism(dp=2, tp=2, pp=2, microbatches=4, zero=3, recompute="full")
    model, cluster = told(DENSE, **TIMES), cluster_for(8)
    replayed = step_ps(model, p, hosted(cluster, mode="graph", launch="7 us"))
    assert replayed == step_ps(model, p, cluster) + 7 * 10**6
    assert replayed == step_ps(DENSE, p, hosted(cluster, mode="graph", launch="7 us"))


@pytest.mark.parametrize("host", [None, Host(mode="none"), Host()])
def test_without_times_or_a_host_nothing_changes(host: Host | None) -> None:
    """No thread is there where it has nothing to do: the tasks are those without hosts."""
    p = Parallelism(pp=2, microbatches=4)
    model = DENSE if host and host.mode == "eager" else told(DENSE, **TIMES)
    plain, _ = lowered(DENSE, p)
    other, _ = lowered(model, p, cluster=replace(cluster_for(2), host=host))
    assert len(plain.tasks) == len(other.tasks)
    assert simulate(plain).end_ps == simulate(other).end_ps


@pytest.mark.parametrize("schedule", ["ZB-H1", "ZB-H2"])
def test_a_split_backward_is_dispatched_in_parts(schedule: str) -> None:
    """Both parts together take the thread as long as a whole backward."""
    p = Parallelism(pp=2, microbatches=4, schedule=schedule)
    task_graph, large = lowered(told(DENSE, **TIMES), p, cluster=hosted(cluster_for(2)))
    tasks, dispatches = task_graph.tasks, large.role == DISPATCH
    total = sum(int(ps) for ps in tasks.duration[dispatches])
    assert total == pytest.approx(4 * 8 * 3500 * 10**6 + 2 * 4000 * 10**6, abs=len(tasks))
    kinds = {tasks.kind[row] for row in np.flatnonzero(dispatches)}
    assert kinds == {"dispatch"}
    assert tasks.name[int(np.flatnonzero(dispatches)[0])] == "dispatch 0F0/layer_0 gpu:0"


BAD = [
    ({"start": "1 us"}, 'host_time: no phase "start"; there are forward, backward, update'),
    ({"forward": "1 m"}, "host_time.forward: "),
    ({"update": -1}, "host_time.update: "),
    (3, "host_time: must be an object of times by phase, got 3"),
]


@pytest.mark.parametrize(("times", "message"), BAD)
def test_bad_times_are_named(times: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        large_model("llama2-7b", host_time=times)
    assert message in str(caught.value)


def test_hosts_that_a_large_model_cannot_have_are_named(tmp_path, capsys) -> None:
    """One thread for several devices, and devices of one rank with different hosts."""
    file = tmp_path / "s.json"
    graph = {"model": "llama2-7b", "layers": 2, "length": 512, "host_time": TIMES}
    cluster = {"preset": "dgx-a100-80", "host": {"threads": "node"}}
    scenario = {
        "version": 1, "graph": graph, "cluster": cluster,
        "strategy": {"pipeline": {"dp": 2, "tp": 4}},
    }  # fmt: skip
    file.write_text(json.dumps(scenario))
    assert main(["simulate", str(file)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f'{file}: cluster.host.threads: a large model has a process a device; write "device"\n'
    )
    whole = boxes(2, 1)
    first = Device("gpu:0", memory="1 GiB", transit=False, host=Host(ahead=5))
    mixed = replace(whole, devices=(first, *whole.devices[1:]))
    with pytest.raises(InputError, match="devices of rank 0 have hosts that differ"):
        lowered(told(DENSE, **TIMES), Parallelism(dp=2), cluster=mixed)


def test_a_report_tells_what_the_hosts_hold_up(tmp_path, capsys) -> None:
    """A scenario in a file: the time in which a rank waits for its thread has a name of its own."""
    file = tmp_path / "s.json"
    graph = {"model": "llama2-7b", "layers": 2, "length": 512, "host_time": TIMES}
    scenario = {
        "version": 1, "graph": graph, "cluster": {"preset": "dgx-a100-80", "host": {}},
        "strategy": {"pipeline": {"dp": 2, "tp": 4, "microbatches": 2}},
    }  # fmt: skip
    file.write_text(json.dumps(scenario))
    assert main(["simulate", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    terms = answer["training"]["terms_s"]
    assert answer["step_time_s"] > 2 * 2 * 0.0035
    assert terms["dispatch"] > 0.003
    assert sum(terms.values()) == pytest.approx(answer["step_time_s"])


def test_what_is_not_known_of_hosts_is_told() -> None:
    """Short layers without a host, and eager hosts without times; nothing where both are there."""
    p, cluster = Parallelism(dp=2), cluster_for(2)
    assert "No host is modelled" in str(report_of(DENSE, p, cluster=cluster))
    assert "graph.host_time tells nothing" in str(report_of(DENSE, p, cluster=hosted(cluster)))
    known = str(report_of(told(DENSE, **TIMES), p, cluster=hosted(cluster)))
    assert "No host is modelled" not in known
    assert "tells nothing" not in known
    replayed = str(report_of(DENSE, p, cluster=hosted(cluster, mode="graph")))
    assert "No host is modelled" not in replayed
    assert "tells nothing" not in replayed
