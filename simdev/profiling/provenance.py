"""Where a measurement comes from: the machine, the device and the versions, as a header tells them."""

from __future__ import annotations

import datetime
import os
import platform
import re
from typing import Any

FAMILIES = ("epyc", "xeon", "ryzen", "threadripper", "core", "apple", "graviton", "neoverse")


def cpu_model() -> str:
    """The model of the CPU as the operating system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """RAM of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_kind(device: str) -> str:
    """A short name of what is measured: ``epyc-1core``, or the GPU's own name in lower case."""
    if device == "cuda":
        import torch

        return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    model = cpu_model().lower()
    family = next((name for name in FAMILIES if name in model), "cpu")
    return f"{family}-1core"


def describe(device: str) -> dict[str, Any]:
    """Host, device and versions."""
    import torch

    from ..version import __version__

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
        "device": _describe_device(device, torch),
        "flags": {
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "compile": False,
        },
    }


def _describe_device(device: str, torch: Any) -> dict[str, Any]:
    found = {"kind": device_kind(device), "torch": torch.__version__}
    if device == "cpu":
        # One thread of PyTorch runs every op, so the device is one core.
        return {
            **found,
            "name": cpu_model(),
            "threads": 1,
            "mkldnn": torch.backends.mkldnn.is_available(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
    properties = torch.cuda.get_device_properties(0)
    return {
        **found,
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
