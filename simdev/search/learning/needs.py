"""What learners need that simdev does without."""

from __future__ import annotations

from importlib.util import find_spec

from ...errors import InputError


def require_torch(method: str) -> None:
    """Raises InputError where PyTorch is missing."""
    if find_spec("torch") is None:
        raise InputError(f'{method} needs PyTorch: install the extra "simdev[torch]"')
