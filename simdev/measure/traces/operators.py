"""What the operators of a trace are, as far as it tells: each kind of call put together once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from .compiled import fused_row, is_fused
from .events import Argument, Event, Events, is_shape
from .replay import ATEN, DTYPES, Replayed, Types, UnknownError, fills_new_memory, replayed
from .updates import Parameter


class Replay:
    """What operators are, each kind of call put together once.

    ``types`` as in ``replayed``; ``parameters`` stand for lists of more than 30 tensors, of which a
    trace has no shapes: what runs over so many at once runs over all parameters or their gradients.
    """

    def __init__(self, types: Types, parameters: Sequence[Parameter] = ()) -> None:
        self.types = {**types, **{shape: getattr(torch, dtype) for shape, dtype in parameters}}
        self._shapes = [list(shape) for shape, _ in parameters]
        self._known: dict[str, list[Replayed] | str] = {}

    def _arguments(self, event: Event) -> list[Argument]:
        """The arguments of a call, with the shapes of long lists."""
        given = event.arguments()
        if not event.name.startswith(ATEN + "_foreach") or not self._shapes:
            return given
        return [
            argument._replace(shape=self._shapes, stride=None)
            if argument.type == "TensorList" and argument.shape == []
            else argument
            for argument in given
        ]

    def of(self, event: Event) -> list[Replayed] | str:
        """What an operator is, or why that is not known."""
        if is_fused(event.name):
            return [Replayed(*fused_row(event))]
        if not event.name.startswith(ATEN):
            return "no operator of PyTorch's own (aten)"
        fills = fills_new_memory(event)
        arguments = self._arguments(event)
        signature = f"{event.name} {event.phase} {fills} {arguments}"
        if signature not in self._known:
            try:
                self._known[signature] = replayed(event, arguments, self.types)
            except UnknownError as error:
                self._known[signature] = str(error)
        return self._known[signature]


def types_of(events: Events) -> Types:
    """The type of elements of every shape that has one in the trace; of several that one which is
    no mask and no index.
    """
    types: defaultdict[tuple[int, ...], set[torch.dtype]] = defaultdict(set)
    for root in events.roots:
        for event in root.inside():
            for argument in event.arguments():
                # Numbers of Python's are written as tensors without dimensions too.
                is_number = argument.shape == [] and argument.type in ("double", "long int")
                if argument.type in DTYPES and is_shape(argument.shape) and not is_number:
                    types[tuple(argument.shape)].add(DTYPES[argument.type])
    chosen = {
        shape: known if len(known) == 1 else {dtype for dtype in known if dtype.is_floating_point}
        for shape, known in types.items()
    }
    return {shape: next(iter(known)) for shape, known in chosen.items() if len(known) == 1}
