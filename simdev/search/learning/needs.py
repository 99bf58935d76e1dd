"""What learners need that simdev does without."""

from __future__ import annotations

from importlib.util import find_spec

from ...ground.errors import InputError, install_line


def require_torch(method: str) -> None:
    """Raises InputError where PyTorch is missing."""
    if find_spec("torch") is None:
        raise InputError(f"{method} needs PyTorch: {install_line('torch')}")


def require_device(name: str) -> None:
    """Raises InputError where PyTorch has no such device ("cpu", "cuda") here."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("settings: device is cuda, and PyTorch sees no GPU here")
