"""Seeds: valid files and the commands that read them, from which mutants are made.

A seed is small, so that a mutant is judged in some hundredths of a second, and holds as many keys
of its format as can be combined. Every command of a seed succeeds; a later one may read a file that
an earlier one has written. A new format, or a new part of one, needs a seed or a key in a seed.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), *(str(TESTS / name) for name in ("importers", "measure"))]

from imported import PROFILE, workload  # noqa: E402
from simdev.commands import main  # noqa: E402
from worlds.scenarios import GPT, TINY, lenet, pipelined, question  # noqa: E402
from worlds.server import line  # noqa: E402


@dataclass(frozen=True)
class Seed:
    """Files by name, and command lines, whose words are separated by spaces. A command that ends in
    ``< NAME`` reads that file as its stdin.
    """

    name: str
    files: Mapping[str, Any]
    commands: tuple[str, ...]


SIMULATE = "simulate s.json --check --json --save run.json", "check run.json"
MIXED = "simulate s.json --check --trace t.json.gz", "report s.json -o r.html --no-what-if"


def op(name: str, time: Any = "10 us", *inputs: str, **more: Any) -> dict[str, Any]:
    made = {"outputs": [{"bytes": 4096, "shape": [32, 32], "dtype": "float32"}]}
    return {"name": name, "time": time, "inputs": list(inputs)} | made | more


def devices(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"gpu:{i}", "kind": "v100", "memory": "1 GB", **more} for i in range(count)]


TWO = {
    "devices": devices(2, beside_copies=1.2),
    "links": {"all_to_all": {"bandwidth": "1 GB/s", "latency": "5 us"}},
}
HOST = {"mode": "eager", "ahead": 3, "threads": "node", "launch": "10 us"}
NODES = {
    "version": 1, "name": "machines", "queues": "fair", "transfer": "multicast", "nodes": 2,
    "devices": [
        *devices(2, node=0, gap="1 us"),
        {"name": "pcie:0", "kind": "switch"},
        {"name": "cpu:0", "kind": "host-cpu", "memory": "unlimited", "staging": True,
         "chunk": "1 MB", "host": {"mode": "none"}},
    ],
    "device_kinds": {"v100": {"transit": False}},
    "link_kinds": {"nvlink": {"bandwidth": "100 GB/s", "latency": "1 us", "lanes": 2}},
    "links": [
        {"ends": ["gpu:0", "gpu:1"], "kind": "nvlink", "duplex": "full", "both_ways": 1.5},
        *({"ends": [name, "pcie:0"], "bandwidth": "25 Gbit/s", "hold_latency": False, "gap": 0}
          for name in ("gpu:0", "gpu:1", "cpu:0")),
    ],
    "network": {"attach": ["pcie:0"], "bandwidth": "100 Gbit/s", "efficiency": 0.9,
                "latency": "2 us", "duplex": "full"},
    "host": HOST,
    "provenance": {"network.bandwidth": {"value": "100 Gbit/s", "kind": "datasheet"}},
}  # fmt: skip
ORDERED = {
    "placement": {"a": "gpu:0", "b": "gpu:1", "*": "gpu:2"},
    "order": {"policy": "priority", "priority": {"a": 2, "b": -1}},
}
OPS = [
    op("a", "1 us", param_bytes=64, grad_bytes=64, state_bytes=128, host_time="2 us", launches=2),
    op("b", {"v100": "5 us", "cpu": "1 ms"}, "a:0", control_inputs=["a"], blocks_host=True),
    op("c", 3e-6, "a", "b", colocate="pair", workspace_bytes=100, releases=["a", "b:0"]),
    op("d", "2 us", "c", colocate="pair", phase="backward", stream="side", attrs={"k": [1, 2.5]}),
]
PLAIN = [{key: value for key, value in each.items() if key != "stream"} for each in OPS]
SHARDS = [op("x0"), op("x1"), op("w", "3 us", "x0", stream="compute")]


def collective(name: str, *inputs: str, **more: Any) -> dict[str, Any]:
    """An op as in captures and traces: a collective of a group, in a stream."""
    return {
        "name": name, "kind": "all_reduce", "time": "20 us", "inputs": list(inputs),
        "outputs": [{"bytes": 4096}, {"bytes": 4096}], "stream": "nccl",
        "attrs": {"ranks": ["gpu:0", "gpu:1"], "group": "dp", "bytes": 4096},
    } | more  # fmt: skip


CAPTURED = question(
    {"ops": [
        *SHARDS,
        collective("r", "x0", "x1"),
        collective("s", "r:0", kind="p2p", outputs=[{"bytes": 4096}],
                   attrs={"ranks": ["gpu:0", "gpu:1"], "bytes": 4096}),
        collective("g", "x0", "x1", kind="all_gather", outputs=[{"bytes": 8192}] * 2,
                   attrs={"ranks": ["gpu:0", "gpu:1"], "group": "tp"}),
        op("y", "4 us", "r:1", control_inputs=["s", "g"], stream="side"),
    ]},
    {"devices": devices(4), "links": {"all_to_all": {"bandwidth": "1 GB/s"}}},
    {"placement": {"x0": "gpu:0", "x1": "gpu:1", "y": "gpu:1", "*": "gpu:0"},
     "collectives": {"cost": "given", "algorithm": "ring", "slowdown": 1.3, "chunks": 2,
                     "groups": {"dp": ["gpu:0", "gpu:1", "gpu:2", "gpu:3"],
                                "tp": ["gpu:0", "gpu:1"]}}},
    options={"memory": {"framework": "pytorch", "rounding": "pytorch", "optimizer": "adam",
                        "context": "cuda", "communication": {"v100": "10 MB"}}},
)  # fmt: skip
TABLES = {
    "version": 1, "name": "measured", "tables": [
        {"collective": "all_reduce", "ranks": 2, "source": "measured",
         "anchors": [[1024, "10 us"], [1048576, "100 us"]], "left_out": {"sizes": 1}},
        {"collective": "all_gather", "ranks": 4, "anchors": [[1, "1 us"], [4096, 5e-6]]},
    ],
}  # fmt: skip
SPLIT = {
    "version": 1, "placement": {"*": "gpu:0"}, "order": "program",
    "partition": {"*fc*": {"split": {"sample": 2}, "devices": ["gpu:0", "gpu:1"],
                           "time": "divided"}},
    "tensors": {"conv_1/tanh:0": {"0": 2}}, "sync": "all-reduce",
    "collectives": {"cost": "table", "tables": TABLES},
}  # fmt: skip
SHEET = {
    "version": 1, "kind": "v100", "flops": {"float32": "15.7 TFLOP/s", "float16": "125 TFLOP/s"},
    "memory_bandwidth": "900 GB/s", "memory": "16 GB", "launch": "3 us",
    "efficiency": {
        "gemm": {"compute": 0.8, "memory": 0.7, "overhead": "1 us", "dtype": "float32"},
        "default": {"any": {"compute": 0.5, "memory": 0.5}}},
}  # fmt: skip
LARGE = pipelined(
    GPT, {"preset": "dgx-h100", "nodes": 1},
    dp=2, tp=2, pp=2, microbatches=4, zero=1, schedule="Interleaved1F1B", chunks=2,
    recompute="selective", recompute_modules=["core_attn"], message_latency="1 us", slowdown=1.1,
)  # fmt: skip
EXPERTS = pipelined(
    {"model": "mixtral-8x7b", "layers": 2, "length": 128, "precision": "float8"}, "dgx-h100",
    dp=4, ep=4, pp=2, microbatches=2, zero=2, token_dispatcher="alltoall", etp=1,
    offload=["optimizer"], host_bandwidth="51 GB/s", cuda_graphs="none",
)  # fmt: skip
ZERO = pipelined(
    GPT, "dgx-h100",
    dp=4, cp=2, context="ring", microbatches=1, flash=True, dp_replicate=2, zero=3, prefetch=2,
    bucket=10**7, in_flight=2,
    reshard_after_forward=True, recompute="full", recompute_layers=2, tp_comm_overlap=False,
)  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "sliding_window": None,
}  # fmt: skip
STAGED = lenet(
    TWO, 4,
    pipeline={"table": "table.csv", "stages": ["block_3/fc/linear"], "ranks": ["gpu:0", "gpu:1"],
              "microbatches": 2},
)  # fmt: skip
TABLE = "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
ROWS = [
    {"v": 1, "header": {"provenance": {"kind": "measured"}, "host": {
        "phases": {"forward": {"host_s": 0.001, "ops": 2}}}}},
    *({"v": 1, "op": "matmul", "attrs": {}, "in": [[n, 32], [32, 16]], "dt": ["float32"] * 2,
       "out": [[n, 16]], "dev": "v100", "phase": "fwd",
       "t_ns": {"n": 5, "p50": 1000 * n, "p10": 900, "p90": 2000 * n, "mean": 1500},
       "host_ns": 500, "rel_err": 0.1, "launches": 1} for n in (32, 64)),
]  # fmt: skip
PROFILED = question(
    {"ops": [
        {"name": name, "kind": "parameter", "outputs": [
            {"bytes": 4 * a * b, "shape": [a, b], "dtype": "float32"}]}
        for name, a, b in (("x", 64, 32), ("w", 32, 16))
    ] + [
        {"name": "y", "kind": "matmul", "inputs": ["x", "w"], "outputs": [
            {"bytes": 4096, "shape": [64, 16], "dtype": "float32"}]},
        {"name": "z", "kind": "relu", "inputs": ["y"],
         "attrs": {"in": [[64, 16]], "dt": ["float32"]},
         "outputs": [{"bytes": 4096, "shape": [64, 16], "dtype": "float32"}]},
    ]},
    {"devices": devices(1), "host": HOST}, {"*": "gpu:0"},
    profile=["p.jsonl"], devices=["sheet.json"],
    options={"samples": 64, "tokens": 1024, "price": "$2.5", "steps": "repeated",
             "memory": {"model": "full", "gradients": 1, "dtype": "float32"}},
)  # fmt: skip
SYNCED = lenet(
    TWO | {"devices": [*devices(2), {"name": "cpu:0", "kind": "cpu"}]}, 4,
    devices=["gpu:0", "gpu:1"], accumulate=2,
    sync={"policy": "p3", "aggregation": "6 GB/s", "message": "30 us"},
    loader={"device": "cpu:0", "time": "30 us"},
)  # fmt: skip
LOCAL = lenet(TWO, 4, sync={"policy": "local-sgd", "every": 2})
DISTURBED = question(
    {"ops": OPS},
    TWO | {"host": HOST, "slow": {"gpu:1": 0.8, "gpu:0 - gpu:1": 0.5}},
    {"placement": {"*": "gpu:0", "b": "gpu:1"}, "order": "program"},
    disturbances={"compute": 0.1, "communication": 0.2, "hosts": 0.1, "devices": 0.05,
                  "tail": "gamma", "seed": 3,
                  "pauses": {"every": "10 ms", "lasts": "1 ms", "devices": ["gpu:0"]}},
    failures={"checkpoint": "30 s", "restart": "10 min", "device_mtbf": "1 year",
              "node_mtbf": "300 days", "written": "1 min", "spares": 1, "swap": "5 min",
              "repair": "1 day", "interval": "1 h", "length": "10 days", "seed": 2},
)  # fmt: skip
GRID = {"version": 1, "name": "g", "grid": [
    {"cluster.bandwidth": ["1 GB/s", 2e9], "strategy.order": ["fifo", "program"]},
    {"cluster.latency": [0, "1 us"]},
]}  # fmt: skip
FLEXFLOW = "2\nfc_5/linear\n0 2 1 2 2 0 1\nblock_3/tanh\n0 2 1 1 1\n0\n"

SCENARIOS = (
    Seed("ops", {"s.json": question({"ops": PLAIN}, NODES, ORDERED)}, SIMULATE),
    Seed("hosts", {"s.json": question(
        {"ops": OPS}, TWO | {"host": HOST},
        {"placement": {"*": "gpu:0", "b": "gpu:1"}, "order": "program"},
        options={"engine": "simpy", "steps": "repeated"})}, SIMULATE),
    Seed("fixed", {"s.json": TINY | {"strategy": {
        "placement": TINY["strategy"],
        "order": {"policy": "fixed", "sequence": {"gpu:0": ["a"], "gpu:1": ["b"]}}}}}, MIXED),
    Seed("parts", {
        "s.json": {"version": 1, "graph": "g.json", "cluster": "c.json", "strategy": "p.json"},
        "g.json": {"version": 1, "name": "g", "ops": PLAIN, "provenance": {"of": "hand"}},
        "c.json": NODES, "p.json": {"version": 1, **ORDERED},
    }, ("simulate s.json --check --engine compiled", "clusters c.json --json")),
    Seed("packed", {"s.json.gz": gzip.compress(json.dumps(TINY).encode(), mtime=0)},
         ("simulate s.json.gz",)),
    Seed("captured", {"s.json": CAPTURED}, SIMULATE),
    Seed("captured report", {"s.json": CAPTURED}, MIXED),
    Seed("profiled", {"s.json": PROFILED, "p.jsonl": ROWS, "sheet.json": SHEET}, SIMULATE),
    Seed("split", {"s.json": lenet(TWO, 4) | {"strategy": SPLIT}}, SIMULATE),
    Seed("synced", {"s.json": SYNCED}, SIMULATE),
    Seed("disturbed", {"s.json": DISTURBED}, (
        "simulate s.json --check --json --save run.json", "check run.json", "simulate s.json",
        "report s.json -o r.html --no-what-if")),
    Seed("drawn", {"s.json": PROFILED, "p.jsonl": ROWS, "sheet.json": SHEET}, (
        "simulate s.json --draws 8 --seed 1 --json",
        "compare s.json s.json --draws 4 --json",)),
    Seed("drawn alike", {"s.json": CAPTURED | {"cluster": CAPTURED["cluster"] | {
        "devices": devices(4, speed=0.9)}}}, ("simulate s.json --draws 4",)),
    Seed("rounds", {"s.json": LOCAL}, SIMULATE),
    Seed("staged", {"s.json": STAGED, "table.csv": TABLE}, SIMULATE),
    Seed("flexflow", {"s.json": lenet(TWO, 4) | {"strategy": "f.txt"}, "f.txt": FLEXFLOW},
         SIMULATE[:1]),
)  # fmt: skip

LARGES = (
    Seed("large", {"s.json": LARGE}, SIMULATE),
    Seed("experts", {"s.json": EXPERTS}, SIMULATE[:1]),
    Seed("zero", {"s.json": ZERO}, SIMULATE[:1]),
    Seed("config", {
        "config.json": CONFIG,
        "s.json": pipelined({"model": "config.json", "length": 128}, "dgx-h100",
                            dp=2, tp=2, pp=2, microbatches=2),
    }, ("simulate s.json --json",)),
    Seed("plan", {"config.json": CONFIG}, (
        "plan config.json --cluster dgx-h100 --global-batch 8 --length 128 --set tp=1,2"
        " --set pp=1 --set zero=1 --set recompute=none --set microbatch=1 --set cp=1 --top 2"
        " --json -o plans",)),
    Seed("model options", {"config.json": CONFIG, "table.csv": TABLE}, (
        "simulate --model config.json --cluster dgx-h100 --dp 2 --tp 2 --pp 2 --microbatches 4"
        " --length 128 --zero 1 --recompute selective --schedule 1F1B --slowdown 1.1 --json",
        "simulate --model gpt-1.7b --length 64 --cluster dgx-h100 --gpus 2 --pp 2"
        " --csv table.csv --microbatches 2",)),
)  # fmt: skip

VERBS = (
    Seed("compared", {"a.json": TINY}, (
        "simulate a.json --save run.json", "check run.json --json", "report run.json -o r.html",
        "compare a.json run.json --json -o c.html")),
    Seed("search", {"s.json": TINY}, (
        "search s.json --method annealing --budget 20 --seed 1 --json -o best.json",)),
    Seed("comparison", {"s.json": TINY}, (
        "search s.json --compare single,m-sct --seeds 2 --budget 8 --journal j",)),
    Seed("sweep", {"s.json": TINY, "grid.json": GRID}, (
        "sweep s.json --grid grid.json --set cluster.queues=link,device -o rows.csv",
        "sweep s.json --grid grid.json -o rows.csv", "report rows.csv -o rows.html")),
    Seed("results", {"rows.csv": (
        "scenario,cluster.bandwidth,status,reason,step_time_s,step_time_ps,feasible,peak_bytes,"
        "samples_per_s,cost_per_step,mfu\ns.json,1 GB/s,ok,,1e-05,10000000,True,8000,32,0.1,0.4\n"
        "s.json,2 GB/s,ok,,6e-06,6000000,False,9000,64,,\ns.json,3,error,bad,,,,,,,\n")},
        ("report rows.csv -o r.html",)),
    Seed("pipeline", {"table.csv": TABLE}, (
        "pipeline --csv table.csv --forward 3ms,5ms --backward 6ms,7ms --weight 1ms --comm 10us"
        " --activation 2GB --kept 1GB --parameters 3GB --save run.json --json --check",
        "pipeline --stages 3 --microbatches 4 --schedule ZB-H1 --forward 1ms --backward 1ms"
        " --weight 1ms --save-csv out.csv --check",
        "pipeline --stages 3 --microbatches 8 --schedule PipeDream --replicas 2,1,1 --forward 1ms"
        " --backward 2ms --sync 1ms")),
    Seed("cluster", {"c.json": NODES}, ("clusters c.json", "clusters dgx-h100 --nodes 2 --gpus 8"
                                        " --network 25Gbit/s --json")),
    Seed("serve", {"s.json": TINY, "in.jsonl": [json.loads(text) for text in (
        line("ping"), line("load", "a", scenario=TINY), line("load", 2, scenario="s.json"),
        line("score", 3, scenario={"x": 1}), line("session", 4, scenario="H", strategy=[0, 1]),
        line("score", 5, scenario="H", strategy={"a": "gpu:0", "b": "gpu:0"}),
        line("batch", 6, scenario="H", strategies=[[0, 1], [1, 1], {"*": "gpu:1"}]),
        line("trace", 7, scenario="H"), line("propose", 8, session="s0", unit="a", device=1),
        line("accept", 9, session="s0"), line("reject", 10, session="s0"), line("stats", 11),
        line("shutdown", 12))]}, ("serve < in.jsonl",)),
)  # fmt: skip


def _printed(files: Mapping[str, Any], command: str) -> tuple[str, dict[str, bytes]]:
    """The output of a command, and the files that it writes."""
    home = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()),
    ):
        os.chdir(folder)
        for name, content in files.items():
            Path(name).write_text(json.dumps(content))
        main(command.split())
        texts = {str(path): path.read_bytes() for path in Path().iterdir()}
        os.chdir(home)
    return out.getvalue(), {name: text for name, text in texts.items() if name not in files}


@cache
def verbs() -> tuple[Seed, ...]:
    """Seeds of files that one verb writes and another reads, and of all other verbs."""
    scenario = {"s.json": CAPTURED}
    _, run = _printed(scenario, "simulate s.json --save run.json")
    _, repeated = _printed({"s.json": SYNCED}, "simulate s.json --save run.json")
    plans, _ = _printed(
        {"config.json": CONFIG},
        (
            "plan config.json --cluster dgx-h100 --global-batch 8 --length 128 --set tp=1,2"
            " --set pp=1 --set zero=1 --set recompute=none --set microbatch=1 --top 2 --json"
        ),
    )
    searched, _ = _printed({"s.json": TINY}, "search s.json --method annealing --budget 8 --json")
    compared, _ = _printed(
        {"s.json": TINY}, "search s.json --compare single,m-sct --seeds 2 --json"
    )
    _, table = _printed(
        {"s.json": TINY}, "sweep s.json --set cluster.queues=link,fair -o r.parquet"
    )
    read = "check run.json --json", "report run.json -o r.html", "compare run.json run.json --json"
    answers = {"plans": plans, "search": searched, "comparison": compared}
    return (
        *VERBS,
        Seed("run", {"run.json": json.loads(run["run.json"])}, read),
        Seed("run of steps", {"run.json": json.loads(repeated["run.json"])}, read[:1]),
        *(Seed(name, {"a.json": json.loads(text)}, ("report a.json -o r.html",))
          for name, text in answers.items()),
        Seed("parquet", {"r.parquet": table["r.parquet"]}, ("report r.parquet -o r.html",)),
    )  # fmt: skip


@cache
def foreign() -> tuple[Seed, ...]:
    """Seeds of files of other tools, except PyTorch's."""
    import networkx as nx

    from foreign import COLL, COMP, alike, field, log, matrix, network, node, varint
    from onnx_nets import convolutional

    nodes = (
        field(1, "0.0.4"), node(0, COMP, us=5, name="a"),
        node(1, COLL, (0,), us=7, comm_type=0, comm_size=4096, pg_name="0"),
        node(2, COMP, (1,), us=3),
    )  # fmt: skip
    trace = b"".join(varint(len(message)) + message for message in nodes)
    chakra = [{"version": "1"},
              {"id": "3", "type": "COMP_NODE", "name": "a", "durationMicros": "7"},
              {"id": "4", "type": "COMM_COLL_NODE", "name": "c", "dataDeps": ["3"], "attr": [
                  {"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "64"},
                  {"name": "involved_dim", "boolList": {"values": [True]}}]}]  # fmt: skip
    graphml = "\n".join(nx.generate_graphml(network()))
    run = " -o out.json --bandwidth 1GB/s", "simulate out.json"
    return (
        Seed("pipedream", {"graph.txt": PROFILE}, ("import graph.txt" + run[0], run[1])),
        Seed("dnn-partitioning", {"w.json": workload()}, ("import w.json -o out.json", run[1])),
        Seed(
            "networkx",
            {"n.json": nx.node_link_data(network(), edges="links")},
            ("import n.json -o out.json --devices 2 --device v100" + run[0][12:], run[1]),
        ),
        Seed("graphml", {"n.graphml": graphml}, ("import n.graphml -o out.json", run[1])),
        Seed(
            "onnx",
            {"m.onnx": convolutional().SerializeToString(deterministic=True)},
            ("import m.onnx -o out.json --device v100 --dim batch=2", run[1]),
        ),
        Seed(
            "chakra",
            {f"t.{rank}.et": trace for rank in range(2)},
            ("import t.0.et t.1.et" + run[0], run[1]),
        ),
        Seed(
            "chakra lines",
            {"t.0.jsonl": chakra, "t.1.jsonl": chakra},
            ("import t.0.jsonl t.1.jsonl --format chakra" + run[0], run[1]),
        ),
        Seed(
            "topology",
            {"topo.txt": matrix(alike(4, "NV4"), ["0", "0", "1", "1"])},
            ("import topo.txt -o c.json --device a100-sxm", "clusters c.json"),
        ),
        Seed("nccl-tests", {"log.txt": log(ranks=2)}, ("import log.txt -o tables.json",)),
    )


def _traces() -> Iterator[Seed]:
    from kineto import MATRIX, kernel, launch, nccl, of_rank, operator, span

    def events(first: int) -> list[Any]:
        """A product, an all-reduce beside another, and a product that waits for both."""
        return [
            operator("aten::mm", 0, 8, MATRIX, 1), launch(5, 1), kernel(10, first, 1),
            span("record_param_comms", 10, 8, **{"Collective name": "allreduce"}),
            span("cudaStreamWaitEvent", 11, 1, "cuda_runtime"), launch(14, 2),
            nccl(10 + first, 200, 2), operator("aten::mm", 20, 8, MATRIX, 3), launch(22, 3),
            kernel(10 + first, 50, 3), span("cudaStreamWaitEvent", 30, 1, "cuda_runtime"),
            operator("aten::mm", 32, 8, MATRIX, 4), launch(34, 4), kernel(210 + first, 20, 4),
            span("cudaDeviceSynchronize", 50, 300, "cuda_runtime"),
        ]  # fmt: skip

    groups = {"world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    ranks = {
        f"t/rank{i}.json": json.loads(of_rank(i, *events(first), **groups))
        for i, first in enumerate((100, 150))
    }
    steps = [span(f"ProfilerStep#{i}", 400 * i, 400, "user_annotation") for i in range(2)]
    alone = {"rank0.json": json.loads(of_rank(0, *steps, *events(100)))}
    yield Seed(
        "trace",
        alone,
        ("import rank0.json -o p.jsonl", "import rank0.json -o out.json", "simulate out.json"),
    )
    yield Seed(
        "ranks",
        ranks,
        (
            "import t -o out.json --bandwidth 10GB/s",
            "simulate out.json --check --save run.json",
            "compare out.json t --json",
            "check run.json",
        ),
    )
    gloo = {
        f"g/{name}": json.loads(
            gzip.decompress((TESTS / "measure" / "gloo" / f"{name}.gz").read_bytes())
        )
        for name in ("pipe0.json", "pipe1.json")
    }
    yield Seed("gloo", gloo, ("import g -o out.json --bandwidth 1GB/s", "simulate out.json"))


@cache
def traces() -> tuple[Seed, ...]:
    """Seeds of traces of PyTorch, and of calibration to measured steps."""
    import torch

    program = BytesIO()
    torch.manual_seed(0)  # the same bytes again
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(1, 3),)), program)
    wall = {"host_ms": {"forward": 1.5}, "wall_s": 0.004}
    chrome = {"traceEvents": [
        {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 2.5, "args": {}}
        for name, at in (("a", 0), ("b", 10.5), ("a", 20), ("b", 31))]}  # fmt: skip
    table = "strategy.pipeline.microbatch,strategy.pipeline.microbatches,step\n" + "".join(
        f"{samples},{count},{20 + samples * count} ms\n"
        for samples in (1, 2)
        for count in (1, 2, 3)
    )
    of_host = {"s.json": PROFILED, "p.jsonl": ROWS, "sheet.json": SHEET, "h.json": wall}
    large = pipelined(GPT | {"layers": 1, "length": 64}, {"preset": "dgx-h100", "host": {}}, dp=8)
    large["options"] = {"limit": "20 ms"}
    return (
        *_traces(),
        Seed("calibrate", {"s.json": TINY, "t.json": chrome}, (
            "calibrate s.json t.json -o out.json --json", "simulate out.json")),
        Seed("calibrate host", of_host, ("calibrate s.json h.json --fit host -o out.json",)),
        Seed("calibrate steps", {"s.json": large, "t.csv": table},
             ("calibrate s.json t.csv --fit host_time -o out.json",)),
        Seed("program", {"m.pt2": program.getvalue()}, (
            "import m.pt2 -o out.json --device v100", "simulate out.json")),
        Seed("doctor", {"p.jsonl": ROWS}, ("profile doctor p.jsonl",)),
    )  # fmt: skip


FAMILIES = {
    "scenarios": lambda: SCENARIOS,
    "large": lambda: LARGES,
    "verbs": verbs,
    "foreign": foreign,
    "traces": traces,
}
"""The seeds of each family, as functions, because those of traces import PyTorch."""
