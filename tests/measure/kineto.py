"""Events of a GPU's traces, in the format of torch.profiler."""

from __future__ import annotations

import json

from simdev import CostModel, run
from simdev.measure.traces.step import TraceStep
from worlds.scenarios import alone


def span(name, start, duration, category="cpu_op", thread=1, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def operator(name, start, duration, inputs, number, thread=1):
    """The span of an operator; ``inputs`` are (type, shape, value)."""
    kinds, shapes, values = (list(column) for column in zip(*inputs, strict=True))
    strides = [[] for _ in shapes]
    for i, shape in enumerate(shapes):
        step = 1
        for extent in reversed(shape if kinds[i] != "TensorList" else []):
            strides[i].insert(0, step)
            step *= extent
    args = {
        "External id": number,
        "Input type": kinds,
        "Input Dims": shapes,
        "Input Strides": strides,
        "Concrete Inputs": values,
    }
    return span(name, start, duration, "cpu_op", thread, **args)


def kernel(start, duration, correlation, stream=7, name="gemm", category="kernel"):
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return span(name, start, duration, category, f"stream {stream}", **args)


def launch(start, correlation, thread=1, duration=2):
    return span(
        "cudaLaunchKernel", start, duration, "cuda_runtime", thread, correlation=correlation
    )


def nccl(
    start, duration, correlation, name="allreduce", nelems=(250_000, 250_000), stream=20, **more
):
    """A kernel of NCCL with PyTorch's record of its collective, among ranks 0 and 1."""
    event = kernel(start, duration, correlation, stream, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    event["args"] |= {
        "Collective name": name,
        "In msg nelems": nelems[0],
        "Out msg nelems": nelems[1],
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        **more,
    }
    return event


MATRIX = [("float", [64, 32], ""), ("float", [32, 16], "")]
H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]


def trace(*events, devices=H100, **more) -> str:
    return json.dumps(
        {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "deviceProperties": devices,
            "traceEvents": list(events),
            **more,
        }
    )


def of_rank(rank, *events, **more) -> str:
    """The trace of a rank."""
    return trace(*events, distributedInfo={"backend": "nccl", "rank": rank, **more})


def simulated_us(step: TraceStep) -> float:
    """Microseconds of the step of a trace, on its device and under its host."""
    return run(alone(step.graph, step.kind, step.host, CostModel(()))).step_ps / 10**6
