"""What ops are split into, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simdev.costs import CostModel
from simdev.ground.errors import InputError, MissingCostError
from simdev.lowering import Partitioned, Prepared, lower, lower_prepared, partition, split
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Order, Strategy, Sync
from split_cases import C, graph_of, parts, simulated, vgg_fc1
from worlds.costs import COSTS
from worlds.graphs import leaf, parameter, tensor
from worlds.split_graphs import cluster, convolutions, linears


def shards(found: Partitioned, op: str) -> list[str]:
    return [
        name
        for name, origin in found.origins.items()
        if origin.op == op and origin.role in ("shard", "copy")
    ]


def op_of(found: Partitioned, name: str) -> Op:
    return found.graph.ops[found.graph.index[name]]


# Leaves, updates and what follows


def test_one_part_keeps_the_name() -> None:
    found = parts(linears(), {"x": C(devices=("gpu:2",))})
    assert set(found.placement.values()) == {"gpu:2"}
    assert [op.name for op in found.graph.ops] == [op.name for op in linears().ops]


SOME_CHANNELS = {
    "x": C({"sample": 2}),
    "fc3": C({"n": 2}, ("gpu:2", "gpu:3")),
    "sum": C({"sample": 2}),
}


def test_leaves_lie_where_they_are_read() -> None:
    found = parts(linears(), SOME_CHANNELS)
    assert {
        found.placement[name]: op_of(found, name).outputs[0].shape for name in shards(found, "w2")
    } == {
        "gpu:0": (8, 8),  # fc2 and the backward read all of it
        "gpu:1": (8, 8),
        "gpu:2": (4, 8),
        "gpu:3": (4, 8),
    }
    assert sum(op_of(found, name).param_bytes for name in shards(found, "w2")) == 3 * 256
    for name in shards(found, "w2"):
        assert not any(text.startswith(f"{name}:")
        and found.placement[op.name] != found.placement[name]
                       for op in found.graph.ops for text in op.inputs)  # fmt: skip


def test_an_update_runs_once_for_each_copy() -> None:
    found = parts(linears(), SOME_CHANNELS)
    where = {
        found.placement[name]: op_of(found, name).attrs["in"][0] for name in shards(found, "u2")
    }
    assert where == {"gpu:0": (8, 8), "gpu:1": (8, 8), "gpu:2": (4, 8), "gpu:3": (4, 8)}


def test_gradients_of_shared_weights_are_added_up_before_they_are_synchronised() -> None:
    found = parts(linears(), {"x": C({"sample": 2})})
    assert [op_of(found, name).kind for name in shards(found, "dw2")] == ["add", "add"]
    rings = {
        found.origins[op.name].op: op.inputs for op in found.graph.ops if op.kind == "all_reduce"
    }
    assert rings == {
        "dw2": ("dw2#0:0", "dw2#1:0"),
        "dw1": ("dw1#0:0", "dw1#1:0"),
        "db1": ("db1#0:0", "db1#1:0"),
    }


def test_backward_ops_follow_their_gradients() -> None:
    found = parts(convolutions(), {"x": C({"sample": 2}), "conv2": C({"k": 2}, ("gpu:2", "gpu:3"))})
    for name in ("pool", "dpool", "dy", "dw2"):
        assert {found.placement[one] for one in shards(found, name)} == {"gpu:2", "gpu:3"}, name
    assert [dict(found.origins[name].box) for name in shards(found, "dw2")] == [
        {"k": (0, 2)},
        {"k": (2, 4)},
    ]
    # dx2 is reduced over the channels of dy: partial results, added up in chunks of samples
    assert [dict(found.origins[name].box) for name in shards(found, "dx2")] == [
        {"k": (0, 2)},
        {"k": (2, 4)},
    ]
    assert [op_of(found, f"dx2#sum{i}").attrs["in"] for i in (0, 1)] == [((2, 4, 8, 8),) * 2] * 2


def test_the_server_of_a_gradient_is_its_first_holder() -> None:
    found = parts(
        linears(),
        {"x": C({"sample": 4}, ("gpu:3", "gpu:2", "gpu:1", "gpu:0"))},
        sync="parameter-server",
    )
    assert found.placement["dw1#sync0"] == "gpu:3"
    assert op_of(found, "dw1#sync0").inputs == ("dw1#0:0", "dw1#1:0", "dw1#2:0", "dw1#3:0")
    assert {op.inputs[1] for op in found.graph.ops if op.name.startswith("u1#")} == {"dw1#sync0:0"}


def test_parts_that_share_a_device_are_added_up_there_first() -> None:
    found = parts(linears(), {"x": C({"sample": 4}, ("gpu:0", "gpu:1"))})
    ring = next(
        op for op in found.graph.ops if op.kind == "all_reduce" and op.name.startswith("dw1")
    )
    assert ring.inputs == ("dw1#sum0:0", "dw1#sum1:0")
    assert [op_of(found, f"dw1#sum{i}").inputs for i in (0, 1)] == [
        ("dw1#0:0", "dw1#1:0"),
        ("dw1#2:0", "dw1#3:0"),
    ]
    alone = parts(linears(), {"x": C({"sample": 4}, ("gpu:0",))})
    assert not any(op.kind == "all_reduce" for op in alone.graph.ops)


def test_only_what_is_needed_of_a_tensor_is_sent() -> None:
    """Halves of the height of a padded convolution: one row of the other half, as a view."""
    found = parts(convolutions(), {"x": C({"d2": 2}), "conv2": C({"p": 2})})
    assert op_of(found, "conv2#0").inputs[:2] == ("relu1#0:0", "relu1#1:1")
    views = op_of(found, "relu1#1").outputs[1:]
    assert [(one.shape, one.view_of, one.bytes) for one in views[:1]] == [
        ((4, 4, 1, 8), 0, 4 * 4 * 4 * 8)
    ]
    # with its padding above and below
    assert op_of(found, "conv2#0").attrs["in"][0] == (4, 4, 6, 8)


def test_a_shard_has_the_key_of_an_op_of_its_shape() -> None:
    """Its cost is that of the same op built at that size."""
    strategy = Strategy(partition={"x": C({"sample": 2})})
    prepared = Prepared(vgg_fc1(64), cluster(devices=2), COSTS)
    own, _, _ = split(prepared, strategy)
    small = Prepared(vgg_fc1(32), cluster(devices=2), COSTS)
    for name in ("fc1", "dx", "dw", "dy"):
        assert own.cost(own.graph.index[f"{name}#1"], 0) == small.cost(small.graph.index[name], 0)


def test_ops_are_split_once_for_clusters_that_differ_in_their_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And anew for other devices, and for another split; the answers are those of a question of its
    own.
    """
    asked: list[Cluster] = []

    def counted(graph: Graph, on: Cluster, *more: object) -> Partitioned:
        asked.append(on)
        return partition(graph, on, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("simdev.lowering.splitting.partition", counted)
    first = cluster()
    faster = replace(first, links=tuple(replace(link, bandwidth=10**9) for link in first.links))
    quiet = replace(first, queues="link", transfer="per-consumer")
    slow = replace(first, devices=(replace(first.devices[0], gap="1 ms"), *first.devices[1:]))
    split, sync = {"x": C({"sample": 4})}, Sync("parameter-server")
    prepared = Prepared(linears(), first, COSTS)
    for on, count in ((first, 1), (faster, 1), (quiet, 1), (first, 1), (slow, 2), (faster, 3)):
        for order in (Order(), Order("priority", {"fc1": -1, "fc2": 3})):
            for strategy in (
                Strategy(partition=split, order=order),
                Strategy(partition=split, order=order, sync=sync),
            ):
                found = lower_prepared(prepared.on(on), strategy)
                assert len(asked) == count
                alone = lower(linears(), on, COSTS, strategy)
                asked.pop()
                for name in ("name", "duration", "priority", "source", "bytes"):
                    assert list(getattr(found.tasks, name)) == list(getattr(alone.tasks, name))
    lower_prepared(prepared.on(faster), Strategy(partition={"x": C({"sample": 2})}))
    assert len(asked) == 4


def test_layers_without_weights_go_back_where_they_went_forward() -> None:
    """dr reads dx2, which lies in halves of the height, and relu1, which lies in samples."""
    found = parts(convolutions(), {"x": C({"sample": 2}), "conv2": C({"p": 2})})
    assert [dict(found.origins[name].box) for name in shards(found, "relu1")] == [
        {"d0": (0, 2)},
        {"d0": (2, 4)},
    ]
    assert [dict(found.origins[name].box) for name in shards(found, "dx2")] == [
        {"h": (0, 4)},
        {"h": (4, 8)},
    ]
    assert [dict(found.origins[name].box) for name in shards(found, "dr")] == [
        {"d0": (0, 2)},
        {"d0": (2, 4)},
    ]


def test_partial_results_are_added_up_as_they_are_read() -> None:
    """Each reader is cut as the chunks are: what it reads lies on its own device."""
    found = parts(linears(), {"x": C({"sample": 2}), "fc2": C({"k": 2}), "fc3": C({"k": 2})})
    assert [dict(found.origins[name].box) for name in shards(found, "fc3")] == [
        {"k": (0, 4)},
        {"k": (4, 8)},
    ]
    assert [op_of(found, f"fc2#sum{i}").outputs[0].shape for i in (0, 1)] == [(8, 4), (8, 4)]
    assert [op_of(found, f"fc3#{i}").inputs[0] for i in (0, 1)] == ["fc2#sum0:0", "fc2#sum1:0"]


def test_a_batch_normalisation_goes_back_with_its_own_statistics() -> None:
    norm = Op(
        "norm",
        "batch_norm",
        inputs=("x", "w", "b", "mean", "var"),
        outputs=(tensor(8, 4, 2, 2), tensor(4), tensor(4)),
        attrs={"training": True},
    )
    back = Op(
        "back",
        "batch_norm_backward",
        "backward",
        ("norm", "x", "w", "mean", "var", "norm:1", "norm:2"),
        outputs=(tensor(8, 4, 2, 2), tensor(4), tensor(4)),
        attrs={"train": True},
    )
    leaves = [leaf("x", 8, 4, 2, 2), *(parameter(name, 4) for name in ("w", "b", "mean", "var"))]
    found = parts(Graph("norm", (*leaves, norm, back)), {"x": C({"sample": 4})})
    assert {origin.role for origin in found.origins.values()} == {"shard", "copy"}
    assert op_of(found, "back#3").inputs[-2:] == ("norm#3:1", "norm#3:2")


# Times


@pytest.mark.parametrize("time", ["4 ms", {"gpu": "4 ms", "tpu": "8 ms"}])
def test_a_time_given_for_the_whole_op_is_divided_only_when_asked(time: object) -> None:
    halves = {"x": C({"sample": 2}), "y": C({"sample": 2})}
    with pytest.raises(
        InputError, match=r'partition\["y"\]\.time: the time of op "y" is given for the whole op'
    ):
        partition(graph_of(time), cluster(), Strategy(partition=halves), COSTS)
    trace = simulated(
        graph_of(time),
        cluster(),
        Strategy(partition=halves | {"y": C({"sample": 2}, time="divided")}),
    )
    assert trace.end_ps == 2 * 10**9


def test_divided_takes_the_cost_of_the_whole_op_from_the_ladder() -> None:
    graph = vgg_fc1(64)
    whole = Prepared(graph, cluster(), COSTS).cost(graph.index["fc1"], 0)
    found = parts(graph, {"fc1": C({"n": 4}, time="divided"), "x": C({"sample": 4})})
    assert whole is not None
    assert op_of(found, "fc1#0").time == {"gpu": whole.seconds / 4}
    assert op_of(found, "dy#0").time is not None  # what follows is divided as what it follows
    assert op_of(parts(graph, {"fc1": C({"n": 4}), "x": C({"sample": 4})}), "dy#0").time is None


def test_an_unknown_cost_is_no_zero() -> None:
    with pytest.raises(MissingCostError, match='no time for "fc1#0"'):
        lower(vgg_fc1(64), cluster(), CostModel(), Strategy(partition={"x": C({"sample": 2})}))
