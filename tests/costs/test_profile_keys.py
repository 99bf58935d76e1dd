"""Keys of profiles: which operators are one and the same."""

from __future__ import annotations

from pathlib import Path

from simdev.costs import op_key, profile_key
from simdev.files.profile import read_profile
from simdev.nouns.models import build

PROFILES = Path(__file__).parents[2] / "profiles"


def test_what_holds_no_element_tells_no_operator_from_another() -> None:
    plain = profile_key("relu", {}, [[4]], ["float32"], [[4]], "fwd", "gpu")
    padded = profile_key("relu", {}, [[4], [0, 3]], ["float32", "uint8"], [[4], [0]], "fwd", "gpu")
    assert padded == plain
    assert profile_key("relu", {}, [[4], []], ["float32"], [[4]], "fwd", "gpu") != plain


def test_an_attribute_at_its_default_need_not_be_told() -> None:
    def key(**attrs: bool) -> str:
        return profile_key("batch_norm_backward", attrs, [[2, 3]], ["float32"], [], "bwd", "gpu")

    assert key() == key(train=True) != key(train=False)


def test_a_model_of_ours_is_known_to_the_h100_s_profile_of_it() -> None:
    rows = read_profile(PROFILES / "h100" / "resnet-50.h100-sxm.jsonl").rows
    graph = build("resnet-50", batch=64)
    keys = {op_key(graph, i, "h100-sxm") for i in range(len(graph.ops))}
    kinds = {key.split(",")[1] for key in keys & set(rows)}
    assert {'"conv2d"', '"batch_norm"', '"batch_norm_backward"', '"linear"'} <= kinds
