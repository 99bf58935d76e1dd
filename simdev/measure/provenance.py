"""Describes the origin of a measurement in a file's header: machine, device and versions.

``profiles``, ``transfers`` and the trace readers call it. A GPU whose datasheet ships
(``simdev/files/presets``) needs a row in GPUS too, or its profiles use the driver's name.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import subprocess

import torch

from ..ground.version import __version__
from ..nouns.scale import memory_bytes
from .kinds import Fields

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
FAMILIES = ("epyc", "xeon", "ryzen", "threadripper", "core", "apple", "graviton", "neoverse")


def cpu_model() -> str:
    """The model of the CPU as the operating system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            line = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:  # no Linux
        line = None
    return line[1].strip() if line else platform.processor() or platform.machine()


# The order matters: a name that contains another (rtx 2080 ti, rtx 2080) comes before it.
GPUS = {
    "h100 pcie": "h100-pcie",
    "h100 nvl": "h100-nvl",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "gb200": "gb200",
    "b200": "b200",
    "a100-sxm4-40gb": "a100-40",
    "a100-pcie-40gb": "a100-40",
    "a100": "a100-80",
    "v100": "v100",
    "p100": "p100",
    "k80": "k80",
    "l40s": "l40s",
    "tesla t4": "t4",
    "quadro p4000": "p4000",
    "rtx 2080 ti": "rtx-2080-ti",
    "rtx 2080 super": "rtx-2080-super",
    "rtx 2080": "rtx-2080",
    "rtx pro 6000": "rtx-pro-6000",
    "mi300x": "mi300x",
}
"""Part of a driver's name of a GPU, in lower case -> the kind of its datasheet. The first part that
the name contains counts.
"""


def device_kind(device: str) -> str:
    """A short name of the measured device: ``epyc-1core``, or the kind of a GPU's datasheet, or
    else the driver's name of the GPU.
    """
    if device == "cuda":
        return gpu_kind(torch.cuda.get_device_name())
    model = cpu_model().lower()
    family = next((name for name in FAMILIES if name in model), "cpu")
    return f"{family}-1core"


def gpu_kind(name: str) -> str:
    """The kind of device of a GPU, by the driver's name of it."""
    lower = name.lower()
    known = next((kind for part, kind in GPUS.items() if part in lower), None)
    return known or re.sub(r"[^a-z0-9]+", "-", lower).strip("-")


def describe(device: str) -> Fields:
    """The header's entries about host, device and versions; ``device`` is "cpu" or "cuda"."""
    return {
        "created": datetime.date.today().isoformat(),
        "tool": f"simdev {__version__}",
        "host": {
            "cpu_model": cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": memory_bytes(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "device": _describe_device(device),
        "flags": {
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "compile": False,
        },
    }


def _describe_device(device: str) -> Fields:
    common = {"kind": device_kind(device), "torch": torch.__version__}
    if device == "cpu":
        # One thread of PyTorch runs every op, so the device is one core.
        return {
            **common,
            "name": cpu_model(),
            "threads": 1,
            "mkldnn": torch.backends.mkldnn.is_available(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
    properties = torch.cuda.get_device_properties(0)
    return {
        **common,
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **driver_fields(_ask_driver()),
    }


DRIVER_FIELDS = {
    "driver_version": "driver",
    "uuid": "uuid",
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "max_sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.limit": "power_cap_w",
    "pcie.link.gen.max": "pcie_gen",
    "pcie.link.width.max": "pcie_width",
}
"""Field of nvidia-smi -> its name in a header."""


def _ask_driver() -> str:
    """The output of nvidia-smi, a line of values separated by commas; empty where it fails."""
    query = f"--query-gpu={','.join(DRIVER_FIELDS)}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def driver_fields(answer: str) -> Fields:
    """Driver, clocks, power cap and PCIe from the output of nvidia-smi; the device's id as a hash.

    Empty where the output has another form.
    """
    values = [value.strip() for value in answer.strip().split("\n")[0].split(",")]
    if len(values) != len(DRIVER_FIELDS):
        return {}
    texts = dict(zip(DRIVER_FIELDS.values(), values, strict=True))
    driver, uuid = texts.pop("driver"), texts.pop("uuid")
    numbers = {
        name: float(value) if _NUMBER.fullmatch(value) else value for name, value in texts.items()
    }
    # The hash distinguishes two devices without disclosing the id.
    return {"driver": driver, "uuid": hashlib.sha256(uuid.encode()).hexdigest()[:12], **numbers}
