"""The sharded graph while it is made: the drafts of its ops, how every tensor lies, and what a
reader is handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ...errors import InputError
from ...graph import Tensor
from ...semantics import Region, is_linear, statistics_of, traits_of
from ...structure import TensorOf
from .buckets import buckets_of
from .demand import copies_of
from .geometry import part
from .layout import Copy, Draft, Grid, Local, Place, grid_of, nearest, part_of
from .plan import (
    Placed,
    Question,
    alike,
    configured_parts,
    followed_axes,
    followed_parts,
    partial_parts,
)
from .stored import stored_grid
from .sums import summed


class Sharding:
    """Drafts and layouts of one question; ``parts`` are those of every op that has a plan of its
    own.
    """

    def __init__(self, question: Question) -> None:
        self._start(question)
        self._plan()
        self._on_demand()

    def _start(self, question: Question) -> None:
        self.question, self.graph = question, question.graph
        self.parts: dict[int, list[Placed]] = {}
        self.divided: dict[int, str | None] = {}  # how long a part takes, by op
        self.layouts: dict[TensorOf, Grid | Local] = {}
        self.sums: dict[TensorOf, Grid] = {}
        self.drafts: dict[int, list[Draft]] = {}
        self.stored: dict[int, list[Draft]] = {}
        self.written: list[Draft] = []
        self._numbers: dict[tuple[int, str], int] = {}

    @cached_property
    def buckets(self) -> dict[tuple[TensorOf, Place], list[Copy]]:
        """Where the sums of gradients lie that are reduced together; asked once all ops of the plan
        are laid.
        """
        return buckets_of(self)

    def tensor(self, tensor: TensorOf) -> Tensor:
        """A tensor of the graph."""
        return self.graph.ops[tensor[0]].outputs[tensor[1]]

    # Who runs what

    def _plan(self) -> None:
        """Parts of every op that is not there on demand, producers first."""
        question, problems = self.question, list[str]()
        for i in question.order:
            if i in question.on_demand or i in question.updates:
                continue
            found = self._parts(i)
            if found is None:
                problems.append(
                    f'placement: op "{self.graph.ops[i].name}" has no device, is not '
                    "split, and reads nothing to follow"
                )
                found = [Placed(part(question.readings[i], ()), 0)]
            self.parts[i] = found
            self._sum_up(i)
            self._lay(i)
        if problems:
            raise InputError(problems)

    def _parts(self, i: int) -> list[Placed] | None:
        question, op = self.question, self.question.readings[i]
        if i in question.configured:
            self.divided[i] = question.configured[i].time
            return configured_parts(op, question.configured[i])
        if not question.free[i]:
            return [Placed(part(op, ()), question.placed[i])]
        return self._following(i)

    def _following(self, i: int) -> list[Placed] | None:
        """Parts like those of the first operand that is split; None where there is nothing to
        follow.

        What goes back through a layer without weights looks at what the layer made first: so it
        runs where that did.
        """
        question, op, read = self.question, self.question.readings[i], self.question.read[i]
        touched = question.touched[i]
        raw = {
            j: one
            for j, t in enumerate(read)
            if t in touched and isinstance(one := self.layouts.get(t), Grid)
        }
        if not raw:
            return None
        operand = self._linear_operand(i, raw)
        if operand is not None:
            found = partial_parts(op, operand, raw[operand])
            if found is not None:
                self.divided[i] = self.divided.get(read[operand][0])
                return found
        if question.goes_back[i]:
            raw = dict(
                sorted(
                    raw.items(),
                    key=lambda item: self.graph.ops[read[item[0]][0]].phase != "forward",
                )
            )
        chosen = next((j for j, grid in raw.items() if followed_axes(op, j, grid)), None)
        if chosen is None:  # perhaps the chunks in which partial results are added up
            raw = {j: self.whole(read[j]) for j in raw}
            chosen = next(
                (j for j, grid in raw.items() if followed_axes(op, j, grid)), next(iter(raw))
            )
        self.divided[i] = self.divided.get(read[chosen][0])
        return followed_parts(op, chosen, raw[chosen])

    def _linear_operand(self, i: int, raw: Mapping[int, Grid]) -> int | None:
        """The operand whose partial results an op can go on with, so that they are added up later;
        None: none.
        """
        op = self.graph.ops[i]
        alone = traits_of(op.kind).linear_in
        operand = 0 if alone is None else alone
        partial = {j for j, grid in raw.items() if grid.addends > 1}
        if operand not in partial:
            return None
        if alone is not None:
            return (
                operand
                if partial == {operand} and (i, 0) in self.question.weights.gradients
                else None
            )
        together = len(raw) == len(op.inputs) and all(
            alike(raw[operand], other) for other in raw.values()
        )
        return operand if is_linear(op) and together else None

    def _sum_up(self, i: int) -> None:
        """Partial results that the parts of an op need as values: best added up as the parts read
        them.
        """
        for operand, tensor in enumerate(self.question.read[i]):
            layout = self.layouts.get(tensor)
            if (
                not isinstance(layout, Grid)
                or layout.addends == 1
                or self.parts[i][0].addend is not None
            ):
                continue
            regions = [
                region for one in self.parts[i] if (region := one.part.needs[operand]) is not None
            ]
            own = all(self.own_statistics(i, tensor, one) is not None for one in self.parts[i])
            if regions and not own:
                cut = [
                    d for d in range(len(regions[0])) if len({region[d] for region in regions}) > 1
                ]
                self.whole(tensor, cut[0] if cut else None)

    def whole(self, tensor: TensorOf, cut: int | None = None) -> Grid:
        """How the values of a tensor lie, partial results added up, in chunks along a dimension
        where one is told.
        """
        layout = self.layouts[tensor]
        assert isinstance(layout, Grid)
        if layout.addends == 1:
            return layout
        if tensor not in self.sums:
            self.sums[tensor] = summed(self, tensor, layout, cut)
        return self.sums[tensor]

    # What is there

    def _lay(self, i: int) -> None:
        """Drafts of the parts of an op, and how its outputs lie."""
        op = self.graph.ops[i]
        many = len(self.parts[i]) > 1
        self.drafts[i] = [
            self._shard(i, one, "shard", f"{op.name}#{number}" if many else op.name, number)
            for number, one in enumerate(self.parts[i])
        ]
        addends = self._addends(i)
        for draft, one in zip(self.drafts[i], self.parts[i], strict=True):
            draft.addend = self._numbers_of(i, one, draft, addends)
        for k in range(len(op.outputs)):
            self.layouts[i, k] = self._grid(i, k)
            wanted = self.question.strategy.tensors.get(f"{op.name}:{k}") or (
                self.question.strategy.tensors.get(op.name) if k == 0 else None
            )
            if wanted:
                self.layouts[i, k] = stored_grid(self, (i, k), wanted)

    def _addends(self, i: int) -> int:
        return 1 + max((one.addend or 0 for one in self.parts[i]), default=0)

    def _numbers_of(self, i: int, one: Placed, draft: Draft, tags: int) -> list[tuple[int, int]]:
        """(addend, count of addends) of each output that a part makes."""
        found = []
        for k, _ in draft.regions:
            own = 1 + max(other.part.addends[k] for other in self.parts[i])
            found.append((one.part.addends[k] * tags + (one.addend or 0), own * tags))
        return found

    def _grid(self, i: int, k: int) -> Grid:
        made, semantics = [], self.question.readings[i].semantics
        for draft, one in zip(self.drafts[i], self.parts[i], strict=True):
            for base, (output, region) in enumerate(draft.regions):
                if output == k:
                    where = Copy(draft, base, draft.device)
                    made.append((region, draft.addend[base][0], one.part.copies[k], where))
        reducer = "sum" if semantics is None else semantics.description.outputs[k].reducer
        try:
            return grid_of(made, reducer)
        except ValueError as error:
            name = self.graph.ops[i].name
            raise InputError(
                f'partition["{name}"]: output {k} of op "{name}" falls into {error}'
            ) from None

    def _shard(self, i: int, one: Placed, role: str, name: str, number: int) -> Draft:
        op = self.graph.ops[i]
        made = [(k, region) for k, region in enumerate(one.part.makes) if region is not None]
        tensors = [part_of(op.outputs[k], region) for k, region in made]
        # such an op is never split: its outputs stay what they are
        if len(op.made) < len(op.outputs):
            tensors = list(op.outputs)
        found = Draft(name, i, role, number, one.device, op.kind, tensors, made, box=one.part.box)
        found.addend = [(0, 1)] * len(made)
        return found

    def draft(
        self,
        tensor: TensorOf,
        role: str,
        device: int,
        kind: str,
        regions: Sequence[Region],
        **fields: Any,
    ) -> Draft:
        """An op that lowering adds: one that holds regions of a tensor on its way to its
        readers.
        """
        i, k = tensor
        number = self._numbers.get((i, role), 0)
        self._numbers[i, role] = number + 1
        tensors = [part_of(self.tensor(tensor), region) for region in regions]
        name = f"{self.graph.ops[i].name}#{role}{number}"
        found = Draft(
            name, i, role, number, device, kind, tensors, [(k, region) for region in regions]
        )
        found.fields, found.addend = (
            {"phase": self.graph.ops[i].phase, **fields},
            [(0, 1)] * len(tensors),
        )
        return found

    def _on_demand(self) -> None:
        """Leaves and what is computed from them alone, where they are read; then the updates of
        these copies.
        """
        for i, held in copies_of(self.question, self.parts).items():
            self.parts[i] = held
            self._lay_copies(i)

    def _lay_copies(self, i: int) -> None:
        """Drafts of the copies of an op that is there on demand, and where its outputs lie."""
        op, many = self.graph.ops[i], len(self.parts[i]) > 1
        self.drafts[i] = [
            self._shard(i, one, "copy", f"{op.name}#{number}" if many else op.name, number)
            for number, one in enumerate(self.parts[i])
        ]
        for k in range(len(op.outputs)):
            by_device: dict[int, list[tuple[Region, Copy]]] = {}
            for draft in self.drafts[i]:
                for base, (output, region) in enumerate(draft.regions):
                    if output == k:
                        by_device.setdefault(draft.device, []).append(
                            (region, Copy(draft, base, draft.device))
                        )
            self.layouts[i, k] = Local(by_device)

    # What a reader is handed

    def read(
        self, tensor: TensorOf, region: Region, device: int, addend: int | None = None
    ) -> list[str]:
        """The inputs that hold a region of a tensor for a reader on a device; of one partial result
        where told.
        """
        layout = self.layouts[tensor]
        if isinstance(layout, Local):
            return [self.hand_out(layout.find(region, device), tensor, region)]
        if addend is not None and layout.addends == 1:
            addend = None
        grid = layout if addend is not None else self.whole(tensor)
        found = []
        for piece, cell in grid.overlapping(region):
            copy = nearest(cell[addend or 0], device)
            found.append(self.hand_out(copy, tensor, piece))
        return found

    def own_statistics(self, i: int, tensor: TensorOf, one: Placed) -> int | None:
        """Which partial result of a statistic belongs to a part of the op that goes back; None
        where it is no such.
        """
        layout = self.layouts[tensor]
        kind = statistics_of(self.graph.ops[i].kind)
        if (
            kind != self.graph.ops[tensor[0]].kind
            or not isinstance(layout, Grid)
            or layout.addends == 1
        ):
            return None
        own = [
            (copies[0].draft.box != one.part.box, addend)
            for cell in layout.cells.values()
            for addend, copies in enumerate(cell)
            if copies[0].device == one.device
        ]
        return min(own)[1] if own else None

    def hand_out(self, copy: Copy, tensor: TensorOf, region: Region) -> str:
        """A region of what a copy holds, as an input; what is only made where it is read is made
        now.
        """
        self.write(copy.draft)
        return copy.draft.output(copy.base, region, self.tensor(tensor))

    def write(self, draft: Draft) -> None:
        """Put what lowering adds into the graph, unless it is there already."""
        if draft.fill is not None:
            fill, draft.fill = draft.fill, None
            fill(draft)
            self.written.append(draft)
