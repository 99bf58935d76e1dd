"""Changes settings of a script's wrappers from outside, to try another bucket size or another
policy of resharding without changing the script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any
from unittest.mock import patch

from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn import parallel

from ...ground.errors import InputError

Changed = Callable[[Callable[..., Any], str, Any], Callable[..., Any]]
"""Takes a function, the name of a setting and its value; returns the function with the setting."""


def _given(function: Callable[..., Any], name: str, value: Any) -> Callable[..., Any]:
    """The function with this argument fixed, whatever the caller passes."""

    def made(*args: Any, **kwargs: Any) -> Any:
        if name not in signature(function).parameters:
            return function(*args, **{**kwargs, name: value})
        bound = signature(function).bind(*args, **kwargs)
        bound.arguments[name] = value
        return function(*bound.args, **bound.kwargs)

    return made


def _prefetching(function: Callable[..., Any], _: str, value: Any) -> Callable[..., Any]:
    """The function, after which each module prefetches the parameters of the next ``value`` modules
    in the order of definition, as by ``set_modules_to_forward_prefetch``.
    """

    def made(state: Any) -> None:
        is_first = state._is_root is None
        function(state)
        modules = state._state_ctx.all_states[1:] if is_first else []
        for place, module in enumerate(modules, 1):
            module._states_to_forward_prefetch = modules[place : place + value]

    return made


@dataclass(frozen=True)
class Setting:
    """A setting of a ``wrapper``: the ``home`` and the name of the ``function`` that takes it, and
    how to ``change`` that function. ``home`` is called once the stand-ins of a capture are in
    place.
    """

    wrapper: str
    home: Callable[[], Any]
    function: str
    change: Changed = _given


def _replicated() -> Any:
    return parallel.DistributedDataParallel


SETTINGS: Mapping[str, Setting] = {
    "bucket_cap_mb": Setting("DistributedDataParallel", _replicated, "__init__"),
    "gradient_as_bucket_view": Setting("DistributedDataParallel", _replicated, "__init__"),
    # Not fully_shard itself: a script may have imported it by name before.
    "reshard_after_forward": Setting(
        "fully_shard", lambda: _fully_shard, "_get_post_forward_mesh_info"
    ),
    "forward_prefetch": Setting("fully_shard", lambda: FSDPState, "_lazy_init", _prefetching),
}
"""The settings that can be changed, by name."""


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
    """Runs the block with these settings of its wrappers. Raises InputError where the block makes
    no wrapper that takes one of them.
    """
    unused = set(settings)

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            unused.discard(name)
            return function(*args, **kwargs)

        return made

    with ExitStack() as stack:
        for name, value in settings.items():
            setting = SETTINGS[name]
            home = setting.home()
            function = setting.change(getattr(home, setting.function), name, value)
            stack.enter_context(patch.object(home, setting.function, noted(name, function)))
        try:
            yield
        except Exception:
            unused.clear()  # the script's own error is the one to report
            raise
        finally:
            if unused:
                name = min(unused)
                wrapper = SETTINGS[name].wrapper
                raise InputError(f"{name}: the script makes no {wrapper}, which takes it")
