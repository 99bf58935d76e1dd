"""Large models as they were really trained: ``python -m benchmarks.really_run [PART ...]``
simulates those whose names have one of the parts, and prints times beside the published, and
memory.

What a source does not tell is ours where it stands. Nothing is fitted to these runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.common import print_table
from simdev import load_scenario, run
from simdev.nouns.models.large import large_model
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.report import Report

GIB = 2**30
_2021 = {"flash": False, "scatter_gather": True, "sequence_parallel": False, "recompute": "full"}


@dataclass(frozen=True, slots=True)
class Ran:
    """A run: its model with changed sizes, machines of a preset, plan, and the seconds of a step
    (None: not told).
    """

    name: str
    model: str
    machines: tuple[str, int]
    plan: Mapping[str, Any]
    seconds: float | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Of all machines."""
        return 8 * self.machines[1]

    def scenario(self) -> dict[str, Any]:
        """In the form of a file."""
        preset, nodes = self.machines
        return {
            "graph": {"model": self.model, **self.sizes},
            "cluster": {"preset": preset, "nodes": nodes} if nodes > 1 else preset,
            "strategy": {"pipeline": dict(self.plan)},
        }


def _narayanan(
    model: str, tp: int, pp: int, devices: int, batch: int, tflops: float, **sizes: int
) -> Ran:
    """A row of table 1 of Narayanan et al. 2021 (arXiv 2104.04473); their formula gives the seconds
    (96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs). Microbatches of one sample, no chunks: ours.
    """
    m, dp = large_model(model, **sizes), devices // (tp * pp)
    s, h, layers = m.length, m.hidden, m.layers
    flops = 96 * batch * s * layers * h * h * (1 + s / (6 * h) + m.vocabulary / (16 * layers * h))
    plan = _2021 | {"dp": dp, "tp": tp, "pp": pp, "microbatches": batch // dp, "zero": 0}
    name = f"Narayanan 2021, {m.parameters() / 1e9:.1f}B"
    seconds = flops / (devices * tflops * 1e12)
    return Ran(name, model, ("dgx-a100-80", devices // 8), plan, seconds, sizes)


def _zero_3(model: str, devices: int, batch: int, each: int, tflops: float) -> Ran:
    """A row of table 2 of Narayanan et al. 2021 (recalled): their code with DeepSpeed's ZeRO 3 of
    2021, so many samples a microbatch. Seconds by the formula of table 1. That nothing goes on
    beside computing is ours: the host waits for the device before each collective.
    """
    plan = {"zero": 3, "prefetch": 0, "overlap": False, "microbatch": each, "microbatches": 1}
    ran = _narayanan(model, 1, 1, devices, batch, tflops)
    sizes = {**ran.sizes, "software": "deepspeed-0.3"}
    name = f"{ran.name}, ZeRO 3 on {devices:,}"
    return replace(ran, name=name, sizes=sizes, plan={**ran.plan, **plan})


def _korthikanti(model: str, pp: int, chunks: int, both: bool, seconds: float) -> Ran:
    """A step of table 5 of Korthikanti et al. 2022 (arXiv 2205.05198) of one replica, as
    calculon-ai/calculon has it (calculon/megatron/validation.py).
    """
    technique = {"recompute": "selective", "sequence_parallel": True} if both else {}
    plan = _2021 | {"tp": 8, "pp": pp, "microbatches": 8 * pp, "zero": 0, "chunks": chunks}
    name = f"Korthikanti 2022, {model}, {'both techniques' if both else 'full recomputation'}"
    sizes = {"software": "megatron-2022"}
    return Ran(name, model, ("dgx-a100-80", pp), plan | technique, seconds, sizes)


def _nvidia(
    model: str, devices: int, degrees: tuple[int, ...], batch: tuple[int, int], length: int,
    tokens: int, release: str = "24.07", **more: Any,
) -> Ran:  # fmt: skip
    """A row of NVIDIA's performance summaries (NeMo 24.07, docs/source/performance; Megatron-Bridge
    25.11, docs/performance-summary.md): DGX H100 in float8, (tp, pp, cp, chunks), samples (of a
    step, of a microbatch), tokens a second and GPU.
    """
    (tp, pp, cp, chunks), (samples, each) = degrees, batch
    dp = devices // (tp * pp * cp)
    plan = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "chunks": chunks, "flash": True, **more}
    plan |= {"microbatches": samples // dp // each, "microbatch": each}
    # Recipes of Megatron-Bridge set it (profiles/runs/recipes.jsonl); NeMo tells nothing of it.
    plan["tp_comm_overlap"] = tp > 1 and release == "25.11"
    sizes: dict[str, Any] = {"length": length, "precision": "float8", "causal": True}
    if model.startswith("gpt"):
        sizes["dropout"] = False
    name = f"NVIDIA {release}, {model} on {devices}"
    seconds = samples * length / tokens / devices
    return Ran(name, model, ("dgx-h100", devices // 8), plan, seconds, sizes)


# Llama 3 (Grattafiori et al. 2024), table 4 and section 3.3.2: no recomputation at 8,192 tokens;
# the first and the last stage have a layer less; states and gradients are shared out, parameters
# stay after the forward, gradients are reduced in float32. Its table has dp 4 for 131,072 tokens,
# which is neither its GPUs nor its batch. Seconds from its TFLOP/s a GPU and 405.85 B parameters
# times 6, with attention as it counts it. Not told, and ours: chunks of a layer, and that gradients
# are reduced every microbatch.
_405B = {"tp": 8, "pp": 16, "chunks": 8, "stage_layers": [0] + [1] * 126 + [0]}
_SHARED = _405B | {"zero": 2, "reduce_bytes": 4}
# The fused SwiGLU of Meta's xformers makes a product again; that it ran here is ours.
_FUSED = {"recompute": "selective", "recompute_modules": ["mlp_act"]}


def _llama(name: str, nodes: int, tflops: float, length: int = 8192, **plan: Any) -> Ran:
    m = large_model("llama3-405b", length=length, causal=True)
    samples = 2**24 // length
    seconds = m.flops(samples) / (8 * nodes * tflops * 1e12)
    sizes = {"length": length, "causal": True}
    return Ran(f"Llama 3, {name}", "llama3-405b", ("dgx-h100", nodes), plan, seconds, sizes)


_MODULES = ["layernorm", "mla_up_proj", "mlp_act", "moe_act"]


def _deepseek(name: str, sizes: Mapping[str, Any], **plan: Any) -> Ran:
    """DeepSeek-V3 (arXiv 2412.19437), table 1, sections 3.2 to 4.2: 180,000 hours of H800 for 10^12
    tokens; moments in two bytes. Microbatches of one sample, and H100: ours.
    """
    plan |= {"dp": 128, "pp": 16, "ep": 64, "microbatches": 120, "state_bytes": 8}
    plan |= {"recompute": "selective", "recompute_modules": _MODULES}
    seconds = 15_360 * 4096 / 1e12 * 180_000 * 3600 / 2048
    sizes = {"precision": "float8", "narrow_dispatch": True, **sizes}
    return Ran(name, "deepseek-v3", ("dgx-h100", 256), plan, seconds, sizes)


_BLOOM = {
    "layers": 70, "hidden": 14_336, "heads": 112, "inner": 57_344, "vocabulary": 250_880,
    "positions": False,
}  # fmt: skip
_NEOX = {
    "layers": 44, "hidden": 6144, "heads": 64, "inner": 24_576, "vocabulary": 50_432,
    "positions": False, "tied": False, "dropout": False,
}  # fmt: skip
RUNS = (
    _narayanan("gpt-1.7b", 1, 1, 32, 512, 137),
    _narayanan("gpt-3.6b", 2, 1, 64, 512, 138),
    _narayanan("gpt-7.5b", 4, 1, 128, 512, 142),
    _narayanan("gpt-18b", 8, 1, 256, 1024, 135),
    _narayanan("gpt-39b", 8, 2, 512, 1536, 138),
    _narayanan("gpt-39b", 8, 4, 1024, 1792, 140, layers=60, hidden=10_240, heads=80, inner=40_960),
    _narayanan("gpt-39b", 8, 8, 1536, 2304, 148, layers=80, hidden=12_288, heads=96, inner=49_152),
    _narayanan("gpt-39b", 8, 16, 1920, 2160, 155, layers=96, hidden=16_384, heads=128,
    inner=65_536),
    _narayanan("megatron-530b", 8, 35, 2520, 2520, 163),
    _narayanan("megatron-1t", 8, 64, 3072, 3072, 163),
    _korthikanti("megatron-530b", 35, 3, False, 49.05),
    _korthikanti("megatron-530b", 35, 3, True, 37.83),
    _korthikanti("megatron-1t", 64, 1, False, 94.42),
    _korthikanti("megatron-1t", 64, 1, True, 71.49),
    # Smith et al. 2022 (arXiv 2201.11990), sections 2.3 and 2.4: 60.1 s with 280 machines and 1,920
    # samples, as cli99/llm-analysis has them; float16 gradients and ZeRO 1 ours.
    Ran(
        "MT-NLG 530B", "megatron-530b", ("dgx-a100-80", 280),
        _2021 | {"dp": 8, "tp": 8, "pp": 35, "microbatches": 240, "gradient_bytes": 2}, 60.1,
    ),
    # bigscience-workshop/bigscience, train/tr11-176B-ml/README.md (its network is Omni-Path).
    Ran(
        "BLOOM 176B", "gpt3-175b", ("dgx-a100-80", 48),
        _2021 | {"dp": 8, "tp": 4, "pp": 12, "microbatch": 2, "microbatches": 128,
                 "stage_layers": [5, *[6] * 10, 5]},
        105, _BLOOM,
    ),
    # Zhang et al. 2022 (arXiv 2205.01068), section 2.4: 992 A100, FSDP and Megatron's tp, up to 147
    # TFLOP/s, it is not told of which FLOPs; tp 8 and a step of one microbatch ours.
    Ran(
        "OPT 175B", "gpt3-175b", ("dgx-a100-80", 124),
        _2021 | {"dp": 124, "tp": 8, "microbatch": 8, "zero": 3},
    ),
    # Black et al. 2022 (arXiv 2204.06745), section 3, and EleutherAI/gpt-neox, configs/20B.yml: 117
    # TFLOP/s, which that code counts as 6 a parameter and 60 s h l a token (get_flops).
    Ran(
        "GPT-NeoX 20B", "gpt3-175b", ("dgx-a100-40", 12),
        _2021 | {"dp": 12, "tp": 2, "pp": 4, "microbatch": 4, "microbatches": 32},
        1536 * 2048 * (6 * 20.55e9 + 60 * 2048 * 6144 * 44) / (96 * 117e12), _NEOX,
    ),
    _nvidia("gpt3-175b", 128, (4, 8, 1, 6), (256, 1), 2048, 726),
    _nvidia("gpt3-175b", 512, (4, 8, 1, 6), (2048, 2), 2048, 782),
    _nvidia("llama2-7b", 8, (1, 1, 1, 1), (128, 1), 4096, 16_847),
    _nvidia("llama2-13b", 16, (1, 4, 1, 10), (128, 1), 4096, 8646),
    _nvidia("llama2-70b", 64, (4, 4, 1, 20), (128, 1), 4096, 1707),
    _nvidia("llama3-8b", 8, (1, 1, 2, 1), (128, 1), 8192, 12_036),
    _nvidia("llama3-70b", 64, (4, 4, 2, 5), (128, 1), 8192, 1533),
    _nvidia("llama3-8b", 8, (1, 1, 1, 1), (128, 1), 8192, 14_451, "25.11", zero=3),
    _nvidia("llama3-70b", 64, (4, 8, 1, 5), (128, 1), 8192, 1602, "25.11"),
    _nvidia("llama3-405b", 1024, (8, 8, 2, 8), (512, 1), 8192, 292, "25.11"),
    _llama("8,192 GPUs", 1024, 430, **_SHARED, **_FUSED, dp=64, microbatches=32),
    _llama("16,384 GPUs", 2048, 400, **_SHARED, dp=128, microbatches=16),
    _llama("131,072 tokens", 2048, 380, 131_072, **_SHARED, dp=8, cp=16, microbatches=16),
    _llama("8,192 GPUs, ZeRO 1", 1024, 430, **_405B, **_FUSED, dp=64, microbatches=32),
    _deepseek("DeepSeek-V3", {"narrow_saved": True}, schedule="DualPipe"),
    _deepseek("DeepSeek-V3, 1F1B", {}),
)  # fmt: skip


ZERO_3 = (
    _zero_3("gpt3-175b", 384, 1536, 4, 144),
    _zero_3("gpt3-175b", 768, 1536, 2, 88),
    _zero_3("gpt3-175b", 1536, 1536, 1, 44),
    _zero_3("megatron-530b", 640, 2560, 4, 138),
    _zero_3("megatron-530b", 1120, 2240, 2, 98),
    _zero_3("megatron-530b", 2240, 2240, 1, 48),
    # The same table's plans of their own (PTD-P), without chunks: ours.
    _narayanan("gpt3-175b", 8, 12, 384, 1536, 153),
    _narayanan("gpt3-175b", 8, 12, 1536, 1536, 141),
    _narayanan("megatron-530b", 8, 35, 560, 2240, 171),
    _narayanan("megatron-530b", 8, 35, 2240, 2240, 159),
)
"""ZeRO 3 and pipelines side by side."""


def simulated(ran: Ran) -> Report:
    """The report of a run."""
    return run(load_scenario(ran.scenario()))


def fits(report: Report) -> bool:
    """Whether the peak of every rank is within its device's memory."""
    assert report.training is not None
    memories = [stage.memory for stage in report.training.stages]
    return all(m.capacity is not None and m.peak <= m.capacity for m in memories)


def plan_text(ran: Ran) -> str:
    """The degrees of a run."""
    p = Parallelism(**ran.plan)
    degrees = {"dp": p.dp, "cp": p.cp, "tp": p.tp, "pp": p.pp, "ep": p.ep, "chunks": p.chunks}
    return " ".join(f"{name} {count}" for name, count in degrees.items() if count > 1)


def cells(ran: Ran, report: Report) -> tuple[str, ...]:
    """A line of the table."""
    assert report.training is not None
    mfu = f"{report.training.mfu:.1%}"
    peak = max(stage.memory.peak for stage in report.training.stages) / GIB
    time = f"{report.seconds:.2f}"
    published = "-" if ran.seconds is None else f"{ran.seconds:.2f}"
    if ran.seconds is not None:
        time += f" ({report.seconds / ran.seconds - 1:+.1%})"
    plan = f"{ran.devices:,}: {plan_text(ran)}"
    return ran.name, plan, f"{published} / {time}", mfu, f"{peak:.1f}"


def chosen(parts: list[str]) -> Iterator[Ran]:
    """The runs whose names have one of the parts, or all."""
    for ran in (*RUNS, *ZERO_3):
        if not parts or any(part in ran.name for part in parts):
            yield ran


def main() -> int:
    """Print the table; 1 where one does not fit."""
    reports = [(ran, simulated(ran)) for ran in chosen(sys.argv[1:])]
    columns = ("run", "GPUs: plan", "published / simulated s", "MFU", "GiB")
    print_table(columns, [cells(ran, report) for ran, report in reports])
    return int(not all(fits(report) for _, report in reports))


if __name__ == "__main__":
    sys.exit(main())
