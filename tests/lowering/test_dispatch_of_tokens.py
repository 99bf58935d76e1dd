"""How tokens get to their experts, what of it goes on beside computing, and what the host of layers
with experts holds up: counted by hand.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.nouns.models.large import large_model, layer, shard_of
from simdev.nouns.models.large.software import DISPATCHERS, SOFTWARE
from simdev.nouns.strategy.parallelism import DISPATCHERS as NAMES
from simdev.nouns.strategy.parallelism import GRAPHS, Parallelism

SIZES: dict[str, Any] = {
    "layers": 2, "hidden": 512, "heads": 8, "inner": 1024, "vocabulary": 1024, "length": 1024,
    "experts": 16, "top_k": 2, "expert_inner": 256, "gated": True, "bias": False, "norm": "rms",
    "dropout": False, "positions": False, "tied": False,
}  # fmt: skip


def scenario(cluster: str, ep: int, software: str = "megatron", **told: Any) -> dict[str, Any]:
    pipeline = {"dp": ep, "ep": ep, "microbatches": 2, "flash": True, **told}
    graph = {"model": "qwen3-30b-a3b", **SIZES, "software": software}
    return {
        "graph": graph,
        "cluster": {"preset": cluster, "gpus": ep},
        "strategy": {"pipeline": pipeline},
    }


def seconds(*args: Any, **told: Any) -> tuple[float, float]:
    """The time of a step, and of it the exchange of tokens that nothing hides."""
    report = run(load_scenario(scenario(*args, **told)))
    stages = report.to_json()["training"]["stages"]
    return report.seconds, stages[0]["terms_s"]["expert"]


def test_each_name_is_known_on_both_floors() -> None:
    assert set(DISPATCHERS) == set(NAMES)
    for software in SOFTWARE.values():
        assert software.dispatcher in NAMES
        assert software.graphs in GRAPHS


@pytest.mark.parametrize(("places", "nodes"), [(4, 1), (8, 1), (8, 2), (16, 4)])
def test_a_token_goes_once_to_each_place_that_it_reaches(places: int, nodes: int) -> None:
    """In the mean over all choices of two experts of 16, all equally likely."""
    model = _model()
    p = Parallelism(dp=places, ep=places, token_dispatcher="hybridep")
    shard = shard_of(model, p)
    apart = nodes if nodes > 1 else places
    each = 16 // apart
    choices = list(combinations(range(16), 2))
    reached = Fraction(sum(len({e // each for e in pair}) for pair in choices), len(choices))
    there, back = shard.exchanged_bytes(nodes)
    assert there == back == -(-2 * 1024 * 512 * reached // 1)
    every = shard_of(model, Parallelism(dp=places, ep=places))
    assert every.exchanged_bytes(nodes) == (2 * 2 * 1024 * 512,) * 2


def _model() -> Any:
    return load_scenario(scenario("dgx-b200", 8)).graph


def test_a_dispatcher_reaches_a_share_of_the_links() -> None:
    """Two ways there and back, forward and backward, of two layers and microbatches."""
    size = shard_of(_model(), Parallelism(dp=8, ep=8, token_dispatcher="hybridep"))
    sent = size.exchanged_bytes()[0]
    _, graphed = seconds("gb200-nvl72", 8, token_dispatcher="hybridep", cuda_graphs="full")
    once = sent / (0.84 * 770e9) + 2 * 5.5e-6
    assert graphed == pytest.approx(4 * 2 * 2 * once, rel=0.02)
    _, launched = seconds("gb200-nvl72", 8, token_dispatcher="hybridep", cuda_graphs="none")
    assert launched - graphed == pytest.approx(4 * 2 * 2 * 170e-6, rel=1e-3)


def test_an_all_to_all_over_many_of_a_rack_is_slow() -> None:
    shard = shard_of(_model(), Parallelism(dp=16, ep=16))
    _, exposed = seconds("gb200-nvl72", 16)
    once = shard.exchanged_bytes()[0] / (0.335 * 770e9) + 2 * 5.5e-6
    assert exposed == pytest.approx(4 * 2 * 2 * once, rel=0.02)


def test_tokens_sent_beside_computing_cost_at_least_what_their_senders_take() -> None:
    step, exposed = seconds("gb200-nvl72", 8, cuda_graphs="full")
    less, hidden = seconds("gb200-nvl72", 8, cuda_graphs="full", ep_comm_overlap=True)
    assert less < step
    assert 0.12 * exposed <= hidden * 1.001
    assert hidden < exposed


def test_the_host_holds_up_what_no_graph_replays() -> None:
    """Launches of a layer with two experts here, forward and backward, at 14.2 us each."""
    steps = {
        graphs: seconds("dgx-b200", 8, "megatron-bridge", cuda_graphs=graphs)[0]
        for graphs in GRAPHS
    }
    by_hand = {"none": 56 + 20 + 4 * 2 + 80 + 30 + 8 * 2, "partial": 20 + 4 * 2 + 30 + 8 * 2}
    for graphs, launches in by_hand.items():
        more = steps[graphs] - steps["full"] - 4 * 2 * 2 * 170e-6
        assert more == pytest.approx(2 * 2 * launches * 14.2e-6, rel=2e-3)
    plain = [seconds("dgx-b200", 8, cuda_graphs=graphs)[0] for graphs in GRAPHS]
    assert len(set(plain)) == 1


def test_a_simulated_host_takes_the_place_of_counted_launches() -> None:
    def step(graphs: str, mode: str, **times: str) -> tuple[float, str]:
        told = scenario("dgx-b200", 8, "megatron-bridge", cuda_graphs=graphs)
        told["cluster"]["host"] = {"mode": mode, "threads": "device"}
        told["graph"]["host_time"] = times
        report = run(load_scenario(told))
        return report.seconds, str(report)

    short = {"forward": "1 us", "backward": "1 us", "update": "1 us"}
    (none, text), (partial, _) = step("none", "eager", **short), step("partial", "eager", **short)
    assert none == partial
    assert "a bare dispatch each" not in text
    replayed = [step(graphs, "graph")[0] for graphs in GRAPHS]
    assert len(set(replayed)) == 1
    # A host of which nothing is told takes nobody's place.
    assert step("none", "eager")[0] > step("partial", "eager")[0] > partial
    alone = scenario("dgx-b200", 8, "megatron-bridge")
    assert "a bare dispatch each" in str(run(load_scenario(alone)))


def test_one_microbatch_and_full_recomputation_hide_no_tokens() -> None:
    told = {"cuda_graphs": "full", "microbatches": 1}
    once = seconds("gb200-nvl72", 8, **told)
    assert once == seconds("gb200-nvl72", 8, ep_comm_overlap=True, **told)
    with pytest.raises(InputError, match='ep_comm_overlap: does not go with recompute "full"'):
        Parallelism(ep_comm_overlap=True, recompute="full")


def test_copies_sent_one_by_one_are_sorted_on_both_sides() -> None:
    model = _model()

    def sorts(**told: Any) -> int:
        p = Parallelism(dp=8, **told)
        return sum(k.kind == "sort" for k in layer(shard_of(model, p), 0).forward)

    assert sorts(ep=8) == 4
    assert sorts(ep=8, token_dispatcher="deepep") == sorts() == 2


def test_what_is_not_known_is_refused() -> None:
    for name, known in (("token_dispatcher", NAMES), ("cuda_graphs", GRAPHS)):
        with pytest.raises(InputError, match=f"{name}: must be one of {', '.join(known)}"):
            Parallelism(**{name: "fast"})
    with pytest.raises(InputError, match="ep_comm_overlap"):
        Parallelism(ep_comm_overlap=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "dispatcher", "refused"),
    [
        ("p3-16xlarge", "deepep", "v100"), ("mi300x-8x", "deepep", "mi300x"),
        ("mi300x-8x", "hybridep", "mi300x"), ("dgx-a100-80", "hybridep", "a100-80"),
        ("dgx-a100-80", "deepep", ""), ("dgx-h100", "hybridep", ""),
    ],
)  # fmt: skip
def test_a_dispatcher_runs_on_the_gpus_that_it_was_written_for(
    cluster: str, dispatcher: str, refused: str
) -> None:
    pipeline = {"dp": 8, "ep": 8, "token_dispatcher": dispatcher}
    graph = {"model": "mixtral-8x7b", "layers": 2, "length": 256}
    scenario = {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}
    if not refused:
        assert run(load_scenario(scenario)).step_ps
        return
    with pytest.raises(InputError, match=f'token_dispatcher: {dispatcher} .* not for "{refused}"'):
        run(load_scenario(scenario))


@pytest.mark.parametrize("fields", [{"token_dispatcher": "deepep"}, {"ep_comm_overlap": True}])
def test_a_model_without_experts_sends_no_tokens(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(fields))}: llama3-8b has no experts"):
        shard_of(large_model("llama3-8b"), Parallelism(dp=8, **fields))
