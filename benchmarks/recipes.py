"""The settings of the recipes behind published runs: ``settings_of`` of a row of ``profiles/runs``.

A row tells its layout; ``profiles/runs/recipes.jsonl`` tells what Megatron-Bridge's recipes set
beside it: recomputation, offloading, CUDA graphs, the dispatcher of tokens, overlaps. A row takes
the nearest recipe of its model by a rule (``_distance``). The recipes are of one release (RELEASE);
runs of older ones may have set other things.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from simdev.nouns.models.large import large_model

FILE = Path(__file__).resolve().parent.parent / "profiles" / "runs" / "recipes.jsonl"
RELEASE = "26.08"
FULL_SINCE = "26.06"
# What sends tokens where a recipe leaves it to the base of its models (Megatron-Bridge,
# scripts/performance/configs/deepseek/deepseek_workload_base_configs.py).
BASES = {"deepseek-v3": "hybridep"}
DEGREES = ("tp", "pp", "cp", "chunks", "ep")
DEFAULTS = {"cp": 1, "chunks": 1, "ep": 1, "fsdp": False}
"""The settings of a recipe whose line does not tell them."""
Row = Mapping[str, Any]

# Bytes/s of a GPU to host memory, each way. Behind PCIe 5 x16 51 GB/s, as of the H100 (Azure's
# AI-benchmarking-guide). Two GPUs share a Grace and the 900 GB/s, both ways together, of its
# NVLink-C2C (NVIDIA's datasheet of the GB200, recalled).
PCIE = "51 GB/s"
HOSTS = {"GB200": "225 GB/s", "GB300": "225 GB/s"}
# Gradients are kept and reduced in bfloat16: ``grad_reduce_in_fp32`` is False in all recipes for
# speed (Megatron-Bridge, scripts/performance/configs, recalled).
GRADIENT_BYTES = 2
# Parts of a sample exchange keys and values around a ring unless a recipe sets ``cp_comm_type``
# (Megatron-core, TEDotProductAttention: "p2p", recalled), which none does.
CONTEXT = "ring"
MORE_LAYERS = 10  # by so many at once more layers are offloaded until a run fits


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a recipe for a run: ``pipeline`` are fields of Parallelism, ``model`` of
    Transformer, ``release`` is that of the row, ``remark`` tells where row and recipe differ (""
    where they do not).

    ``cuda_graph`` is "none", "full_iteration", or what captures the parts of layers in
    ``cuda_graph_scope`` ("transformer_engine", "local"). ``dispatcher`` of tokens: "alltoall",
    "deepep", "hybridep", or "" where the recipe leaves it to its model's defaults.
    """

    pipeline: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    cuda_graph: str = "none"
    cuda_graph_scope: tuple[str, ...] = ()
    dispatcher: str = ""
    ep_overlap: bool = False
    release: str = ""
    remark: str = ""
    family: str = ""
    is_rack: bool = False

    @property
    def experts(self) -> dict[str, Any]:
        """The fields of Parallelism that tell how tokens get to their experts.

        Graphs of whole iterations, and what goes with them, are not in releases before FULL_SINCE:
        the same layouts took up to 1.6 times as long then. Without them tokens were not sent beside
        computing within a rack, where the host's time for it cost more than it brought
        (Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization, section 3.2).
        """
        is_late = self.release >= FULL_SINCE
        is_whole = self.cuda_graph == "full_iteration"
        graphs = "partial" if is_whole or "moe_router" in self.cuda_graph_scope else "none"
        return {
            "token_dispatcher": self.dispatcher or BASES.get(self.family, "alltoall"),
            "cuda_graphs": "full" if is_late and is_whole else graphs,
            "ep_comm_overlap": self.ep_overlap and (is_late or not (is_whole or self.is_rack)),
        }


def settings_of(row: Row) -> Settings:
    """The settings of the recipe nearest to a row."""
    recipe = _nearest(row)
    if recipe is None:
        return Settings(
            _megatron(row), release=row["release"], remark=f"no recipe of {row['model']}"
        )
    return _settings(recipe, row)


def looser(row: Row) -> Iterator[tuple[Row, Settings]]:
    """What else a run may have set that does not fit as it is told, though it did run: by rows as
    they are asked then, with their settings.

    A recipe of another system offloads more layers here. Else the recipe's own layout takes the
    place of the row's, for tables of runs have been wrong in theirs.
    """
    recipe = _nearest(row)
    if recipe is None or not _differences(recipe, row):
        return
    if recipe["system"] == row["system"]:
        own = {**row, **{name: recipe[name] for name in (*DEGREES, "microbatch")}}
        told = [f"{name} {row[name]}" for name in own if own[name] != row[name]]
        if told:
            remark = f"does not fit with {', '.join(told)}; layout of {recipe['recipe']}"
            yield own, replace(_settings(recipe, own), remark=remark)
    elif "offload_layers" in recipe:
        for count in range(recipe["offload_layers"], large_model(row["model"]).layers, MORE_LAYERS):
            settings = _settings({**recipe, "offload_layers": count + MORE_LAYERS}, row)
            remark = f"{settings.remark}; {count + MORE_LAYERS} layers are offloaded"
            yield row, replace(settings, remark=remark)


@cache
def _recipes() -> tuple[dict[str, Any], ...]:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return tuple({**DEFAULTS, **json.loads(line)} for line in lines)


def _nearest(row: Row) -> dict[str, Any] | None:
    """The recipe nearest to a row, the first of several; None where its model has none."""
    of_model = [recipe for recipe in _recipes() if recipe["model"] == row["model"]]
    return min(of_model, key=lambda recipe: _distance(recipe, row), default=None)


def _distance(recipe: Row, row: Row) -> tuple[bool, int, int, bool, bool]:
    """How far a recipe is from a row, first by what decides how much memory there is to spare: FSDP
    or not; the system, of others those with the same host; degrees; microbatch; precision.
    """
    system, other = row["system"], recipe["system"]
    is_far = (system in HOSTS) != (other in HOSTS)
    degrees = sum(recipe[name] != row[name] for name in DEGREES)
    return (
        recipe["fsdp"] != (row["fsdp"] > 1),
        (system != other) + is_far,
        degrees,
        recipe["microbatch"] != row["microbatch"],
        recipe["precision"] != precision_of(row),
    )


def precision_of(row: Row) -> str:
    """The precision of a row as recipes call it.

    Of two figures in one row (release 25.09) the second is of blocks, on Blackwell of 32 elements.
    """
    name = row["precision"]
    if name.startswith("FP8 (second"):
        return "fp8sc" if row["system"] == "H100" else "fp8mx"
    known = {"BF16": "bf16", "FP8-MX": "fp8mx", "MXFP8": "fp8mx", "NVFP4": "nvfp4"}
    return known.get(name, "fp8cs")


def _differences(recipe: Row, row: Row) -> str:
    """In what a recipe differs from a row; "" where it is of the same question."""
    same = {"system": row["system"], "fsdp": row["fsdp"] > 1, "precision": precision_of(row)}
    same |= {name: row[name] for name in (*DEGREES, "microbatch")}
    return ", ".join(name for name, value in same.items() if recipe[name] != value)


def _settings(recipe: Row, row: Row) -> Settings:
    other = _differences(recipe, row)
    names = ("cuda_graph", "dispatcher", "ep_overlap")
    return Settings(
        _pipeline(recipe, row),
        _model(recipe, row),
        cuda_graph_scope=tuple(recipe.get("cuda_graph_scope", ())),
        release=row["release"],
        family=row["model"],
        is_rack=row["system"] in HOSTS,
        remark=f"{recipe['recipe']} has other {other}" if other else "",
        **{name: recipe[name] for name in names if name in recipe},
    )


def _model(recipe: Row, row: Row) -> dict[str, int]:
    """The fields of Transformer that a recipe sets: layers that predict further tokens."""
    if not (mtp := _mtp(recipe, row)):
        return {}
    return {"layers": large_model(row["model"]).layers + mtp, "mtp": mtp}


def _mtp(recipe: Row, row: Row) -> int:
    return 0 if row["note"] == "w/o MTP" else recipe.get("mtp", 0)


def _megatron(row: Row) -> dict[str, Any]:
    """The fields of Parallelism that all recipes set."""
    told: dict[str, Any] = {"gradient_bytes": GRADIENT_BYTES}
    return told | ({"context": CONTEXT} if row["cp"] > 1 else {})


def _pipeline(recipe: Row, row: Row) -> dict[str, Any]:
    """The fields of Parallelism that a recipe sets for a row."""
    told = _megatron(row) | {"overlap": recipe.get("overlap_grad_reduce", True)}
    # The Transformer Engine's user buffers have no form of 4 bits, and no recipe of that precision
    # asks for them.
    overlaps = row["tp"] > 1 and precision_of(row) != "nvfp4"
    told["tp_comm_overlap"] = overlaps and recipe.get("tp_comm_overlap", False)
    # Stages are those of the recipe only where there are as many.
    counts = recipe.get("stage_layers", ())
    if len(counts) == row["pp"] * row["chunks"]:
        more = recipe.get("mtp", 0) - _mtp(recipe, row)
        told["stage_layers"] = [*counts[:-1], counts[-1] - more]
    # What makes a step fit without FSDP says nothing of one with it.
    if recipe["fsdp"] != (row["fsdp"] > 1):
        return told
    if "recompute_modules" in recipe:
        told |= {"recompute": "selective", "recompute_modules": recipe["recompute_modules"]}
    if "recompute_layers" in recipe:
        told |= {"recompute": "full", "recompute_layers": recipe["recompute_layers"]}
    if "offload_layers" in recipe:
        host = HOSTS.get(row["system"], PCIE)
        told |= {"offload": ["activations"], "host_bandwidth": host}
        told["offload_layers"] = recipe["offload_layers"]
    return told
