"""Settings of a script's wrappers, changed from outside: what another bucket size or another policy
of resharding would bring, without a word changed in the script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any
from unittest.mock import patch

from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.nn import parallel

from ...ground.errors import InputError

WRAPPERS: Mapping[str, Callable[[], tuple[Any, str]]] = {
    "DistributedDataParallel": lambda: (parallel.DistributedDataParallel, "__init__"),
    # What fully_shard itself is may have been imported by name before.
    "fully_shard": lambda: (_fully_shard, "_get_post_forward_mesh_info"),
}
"""By name of a wrapper the home and the name of the function that takes its settings, looked up
once the stand-ins of a capture are in place.
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
            if name not in signature(function).parameters:
                return function(*args, **{**kwargs, name: settings[name]})
            bound = signature(function).bind(*args, **kwargs)
            bound.arguments[name] = settings[name]
            return function(*bound.args, **bound.kwargs)

        return made

    with ExitStack() as stack:
        for name in settings:
            home, attribute = WRAPPERS[SETTINGS[name]]()
            function = with_setting(getattr(home, attribute), name)
            stack.enter_context(patch.object(home, attribute, function))
        try:
            yield
        except Exception:
            unused.clear()  # what the script stumbled over is what to tell
            raise
        finally:
            if unused:
                name = min(unused)
                raise InputError(f"{name}: the script makes no {SETTINGS[name]}, which takes it")
