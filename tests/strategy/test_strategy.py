"""Strategy: which entry of a placement wins, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from simdev.commands import main
from simdev.ground.errors import DeadlockError, InputError
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Order, Strategy, resolve_placement
from simdev.nouns.structure import module_pattern

CLUSTER = Cluster("c", (Device("gpu:0"), Device("gpu:1"), Device("gpu:2"), Device("sw", "switch")))


def graph(*ops: str) -> Graph:
    """Ops written "name" or "name@group"."""
    parts = [text.partition("@") for text in ops]
    return Graph("g", tuple(Op(name, colocate=group or None) for name, _, group in parts))


def devices(ops: list[str], placement: Mapping[str, str]) -> list[int]:
    return resolve_placement(
        graph(*ops), CLUSTER, {key: f"gpu:{device}" for key, device in placement.items()}
    )


def problems(ops: list[str], placement: Mapping[str, str]) -> tuple[str, ...]:
    with pytest.raises(InputError) as error:
        resolve_placement(graph(*ops), CLUSTER, placement)
    return error.value.problems


def test_an_ops_own_name_wins_over_its_group_and_the_group_over_patterns() -> None:
    assert devices(["a@g"], {"a": 0, "g": 1, "*": 2}) == [0]
    assert devices(["a@g"], {"g": 1, "*": 2}) == [1]
    assert devices(["a@g"], {"*": 2}) == [2]


def test_the_pattern_with_the_most_letters_wins_in_any_order() -> None:
    entries = {"*": 0, "encoder/*": 1, "encoder/layer_?/mm": 2}
    ops = ["encoder/layer_1/mm", "encoder/layer_1/add", "decoder/mm"]
    assert devices(ops, entries) == [2, 1, 0]
    assert devices(ops, dict(reversed(entries.items()))) == [2, 1, 0]


def test_patterns_mind_upper_case_and_cross_slashes() -> None:
    assert devices(["A/b/c", "a/b/c"], {"A*": 0, "a*c": 1}) == [0, 1]


def test_equal_patterns_may_agree_and_may_not_disagree() -> None:
    assert devices(["ab"], {"a*": 0, "*b": 0}) == [0]
    assert problems(["ab"], {"a*": "gpu:0", "*b": "gpu:1"}) == (
        'placement: "ab" matches "a*" and "*b", which name different devices',
    )


def test_a_name_with_wildcards_in_it_is_still_a_name() -> None:
    assert devices(["a[0]", "a0"], {"a[0]": 1, "a0": 2}) == [1, 2]


def test_a_pattern_that_lost_everywhere_is_no_mistake() -> None:
    assert devices(["ab"], {"a*": 0, "ab": 1}) == [1]
    assert devices(["ab"], {"a*": 0, "*": 1}) == [0]


def test_entries_must_mean_something() -> None:
    assert problems(["a", "b"], {"a": "gpu:9", "b": "sw", "z": "gpu:0", "y*": "gpu:0"}) == (
        'placement["a"]: no device named "gpu:9"',
        'placement["b"]: "sw" is a switch and runs no op',
        'placement["z"]: no op and no colocation group is called or matched by this',
        'placement["y*"]: no op and no colocation group is called or matched by this',
    )


def test_every_op_needs_a_device() -> None:
    assert problems(["a", "b", "c"], {"b": "gpu:0"}) == (
        'placement: op "a" has no device',
        'placement: op "c" has no device',
    )
    assert devices([], {}) == []


def test_a_misspelt_entry_is_told_ahead_of_the_ops_that_it_leaves_out() -> None:
    assert problems(["a/1", "a/2"], {"aa/*": "gpu:0"}) == (
        'placement["aa/*"]: no op and no colocation group is called or matched by this',
        'placement: op "a/1" has no device',
        'placement: op "a/2" has no device',
    )


def test_a_group_stays_together() -> None:
    assert devices(["a@g", "b@g"], {"a": 1, "b": 1}) == [1, 1]
    assert problems(["a@g", "b@g"], {"a": "gpu:0", "b": "gpu:1"}) == (
        'placement: colocation group "g" is split over gpu:0, gpu:1: "a" on gpu:0; "b" on gpu:1; '
        'write {"g": "gpu:0"} and no entry for its single ops',
    )
    assert problems(["a/1@g", "a/2@g", "b@g"], {"a": "gpu:0", "b*": "gpu:1"}) == (
        'placement: colocation group "g" is split over gpu:0, gpu:1: "a/1" and 1 more on gpu:0 by '
        '"a"; "b" on gpu:1 by "b*"; write {"g": "gpu:0"}',
    )
    assert devices(["a/1@g", "a/2@g", "b@g"], {"a": 1, "b*": 1, "g": 0}) == [0] * 3


def test_a_module_covers_its_ops_of_all_phases() -> None:
    ops = ["net/2/linear", "grad/net/2/mul", "update/net/2/weight", "net/20/x"]
    places = {"*": 0, "net.2": 1}
    assert devices(ops, places) == [1, 1, 1, 0]
    assert devices(ops, places | {"net": 0}) == [1, 1, 1, 0]
    # Patterns and modules are compared by their letters, and names of ops win over both.
    assert devices(ops, places | {"*net/2/lin*": 0}) == [0, 1, 1, 0]
    assert devices(ops, places | {"net/2/linear": 0}) == [0, 1, 1, 0]
    assert devices(["net.2", "net.2.x"], {"*": 0, "net.2": 1}) == [1, 0]
    assert devices(["net.2.x", "net.3.x"], {"*": 0, "net.2": 1}) == [1, 0]
    assert problems(["net/2/x"], {"*": "gpu:0", "net.1": "gpu:1"}) == (
        'placement["net.1"]: no op and no colocation group is called or matched by this; '
        'did you mean the module "net/2"?',
    )


def test_steps_of_unrolled_ops_are_of_their_module() -> None:
    names = ("rnn@12/cell/matmul", "grad/rnn/cell@3/matmul", "gradients/rnn/cell/x", "rnn/cells/x")
    assert [bool(module_pattern("rnn.cell").match(name)) for name in names] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"policy": "lifo"},
            'order.policy: must be one of fifo, program, priority, fixed, got "lifo"',
        ),
        (
            {"policy": "fifo", "priority": {"a": 1}},
            'order.priority: goes with the policy "priority", not with "fifo"',
        ),
        (
            {"policy": "priority", "sequence": {"gpu:0": ("a",)}},
            'order.sequence: goes with the policy "fixed", not with "priority"',
        ),
    ],
)
def test_an_order_that_contradicts_itself_is_refused(
    fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(InputError) as error:
        Order(**fields)  # type: ignore[arg-type]
    assert error.value.problems == (problem,)


def test_an_order_may_be_the_name_of_a_policy():
    assert Strategy({"*": "g0"}, "program").order == Order("program")
    with pytest.raises(InputError, match="must be one of"):
        Strategy({"*": "g0"}, "random")
    with pytest.raises(InputError, match="needs a placement by name"):
        Strategy(["g0"])


def test_an_empty_name_names_nothing() -> None:
    assert problems(["a"], {"a": "gpu:0", "": "gpu:0"}) == (
        'placement[""]: no op and no colocation group is called or matched by this',
    )


def test_a_deadlock_is_told_of_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = [{"name": name, "outputs": [{"bytes": 1}], "time": 1} for name in "ab"]
    ops[1]["inputs"] = ["a"]
    order = {"policy": "fixed", "sequence": {"gpu:0": ["b", "a"]}}
    scenario = {
        "version": 1,
        "graph": {"version": 1, "name": "two", "ops": ops},
        "cluster": {"version": 1, "name": "one", "devices": [{"name": "gpu:0"}]},
        "strategy": {"version": 1, "placement": {"*": "gpu:0"}, "order": order},
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))
    assert main(["simulate", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"{path}: deadlock: 2 tasks can never start" in told
    assert pickle.loads(pickle.dumps(DeadlockError(["a"], "f"))).within("g").file == "f"
