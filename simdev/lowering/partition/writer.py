"""The sharded graph while it is written: the drafts of its ops, how every tensor lies, and what a
reader is handed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...nouns.graph import Tensor
from ...nouns.semantics import Region
from ...nouns.structure import TensorOf
from .layout import Copy, Grid, Local, Piece, Place, ShardDraft, part_of
from .problem import SplitProblem


class ShardWriter:
    """Drafts and layouts of one problem.

    ``drafts`` are those of each op's parts, ``stored`` those in which its outputs are stored
    otherwise than they are made; ``buckets`` are where the sums of gradients lie that are reduced
    together (None: not asked for yet). ``written`` is the sharded graph so far.
    """

    def __init__(self, problem: SplitProblem) -> None:
        self.problem, self.graph = problem, problem.graph
        self.layouts: dict[TensorOf, Grid | Local] = {}
        self.drafts: dict[int, list[ShardDraft]] = {}
        self.stored: dict[int, list[ShardDraft]] = {}
        self.buckets: dict[tuple[TensorOf, Place], list[Copy]] | None = None
        self.written: list[ShardDraft] = []
        self._numbers: Counter[tuple[int, str]] = Counter()

    def tensor(self, tensor: TensorOf) -> Tensor:
        """A tensor of the graph."""
        return self.graph.ops[tensor[0]].outputs[tensor[1]]

    def added(
        self,
        tensor: TensorOf,
        role: str,
        device: int,
        kind: str,
        regions: Sequence[Region],
        pieces: Callable[[], Iterable[Piece]],
        **fields: Any,
    ) -> ShardDraft:
        """An op that lowering adds: it holds regions of a tensor on its way to its readers, and
        reads ``pieces`` once something reads it.
        """
        i, k = tensor
        number = self._numbers[i, role]
        self._numbers[i, role] += 1
        tensors = [part_of(self.tensor(tensor), region) for region in regions]
        made = [(k, region) for region in regions]
        op = self.graph.ops[i]
        name, addend = f"{op.name}#{role}{number}", [(0, 1)] * len(tensors)
        draft = ShardDraft(name, i, role, number, device, kind, tensors, made, addend)
        draft.fields, draft.pieces = {"phase": op.phase, **fields}, pieces
        return draft

    def hand_out(self, copy: Copy, tensor: TensorOf, region: Region) -> str:
        """A region of what a copy holds, as an input; what is made on demand is made now."""
        self.write(copy.draft)
        return copy.draft.output(copy.base, region, self.tensor(tensor))

    def write(self, draft: ShardDraft) -> None:
        """Put what lowering adds into the graph, unless it is there already."""
        if draft.pieces is not None:
            pieces, draft.pieces = draft.pieces, None
            # What it reads is written first, so that the graph stays in program order.
            draft.inputs = [self.hand_out(*piece) for piece in pieces()]
            self.written.append(draft)
