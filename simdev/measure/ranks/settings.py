"""Settings of a script's wrappers, changed from outside: what another bucket size or another policy
of resharding would bring, without a word changed in the script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed.fsdp as fsdp
from torch.nn import parallel

from ...ground.errors import InputError

WRAPPERS: Mapping[str, Callable[[], tuple[Any, str]]] = {
    "DistributedDataParallel": lambda: (parallel.DistributedDataParallel, "__init__"),
    "fully_shard": lambda: (fsdp, "fully_shard"),
}
"""By name of a wrapper its home and the function there that takes its settings, looked up once the
stand-ins of a capture are in place.
"""
SETTINGS: Mapping[str, str] = {
    "bucket_cap_mb": "DistributedDataParallel",
    "gradient_as_bucket_view": "DistributedDataParallel",
    "reshard_after_forward": "fully_shard",
}
"""By keyword argument the wrapper that takes it."""


def parse_setting(text: str) -> tuple[str, Any]:
    """The name and the value of "reshard_after_forward=false". Raises InputError."""
    name, equals, value = text.partition("=")
    if not equals or name not in SETTINGS:
        raise InputError(f'must be NAME=VALUE, of {", ".join(SETTINGS)}; got "{text}"')
    try:
        return name, json.loads(value.lower())
    except ValueError:
        raise InputError(f'{name}: must be a number, true or false, got "{value}"') from None


@contextmanager
def changed(settings: Mapping[str, Any]) -> Iterator[None]:
    """Runs the block with other settings of its wrappers. Raises InputError where the block makes
    no wrapper that takes one.
    """
    unused = set(settings)

    def with_setting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            unused.discard(name)
            return function(*args, **{**kwargs, name: settings[name]})

        return made

    with ExitStack() as stack:
        for name in settings:
            home, attribute = WRAPPERS[SETTINGS[name]]()
            function = with_setting(getattr(home, attribute), name)
            stack.enter_context(patch.object(home, attribute, function))
        try:
            yield
        finally:
            if unused:
                name = min(unused)
                raise InputError(f"{name}: the script makes no {SETTINGS[name]}, which takes it")
