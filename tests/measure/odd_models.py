"""Small models of operators that simdev does not describe, or describes only in the common case.
Each has a builder, as ``simdev profile FILE:FUNCTION`` expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

Built = tuple[Any, Any, Callable[..., Any]]
Forward = Callable[..., Any]


class Net(nn.Module):
    """A linear layer of 8 units, an embedding of 11 rows, and a function that uses both."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear, self.table, self.behind = nn.Linear(8, 8), nn.Embedding(11, 8), forward

    def forward(self, x: Any, ids: Any) -> Any:
        return self.behind(self.linear(x), self.table.weight, ids)


def model(name: str, forward: Forward, *shape: int) -> Callable[[], Built]:
    """A builder: ``forward(h, table, ids)`` of a layer's output h[.., 8], a table[11, 8] and
    numbers ids[3, 4] below 11.
    """

    def build() -> Built:
        batch = torch.randn(*(shape or (3, 4)), 8), torch.randint(11, (3, 4))
        return Net(forward), batch, lambda m, x, ids: m(x, ids).float().square().sum()

    build.__name__ = name
    return build


def indexed(h: Any, table: Any, ids: Any) -> Any:
    return h + table[ids] + h[:, ids[0] % 4]


def written(h: Any, table: Any, ids: Any) -> Any:
    spread = torch.zeros(3, 11).scatter_add(1, ids, h.sum(-1))
    return spread.scatter(1, ids[:, :1], h[:, :1, 0]) @ table


def put(h: Any, table: Any, ids: Any) -> Any:
    return torch.zeros(11, 8).index_put((ids,), h, accumulate=True) + table


def best(h: Any, table: Any, ids: Any) -> Any:
    values, places = h.topk(3, dim=-1)
    return (
        values + torch.gather(h, -1, places) + torch.gather(h, -1, ids[:, :2, None])[..., :1].sum()
    )


def segmented(h: Any, table: Any, ids: Any) -> Any:
    """A loss of every pixel."""
    return F.cross_entropy(h.permute(0, 3, 1, 2), (ids % 8)[:, :, None].expand(3, 4, 5))


def drawn(h: Any, table: Any, ids: Any) -> Any:
    return h * torch.randint(2, (3, 4, 1)) + torch.randperm(8) + torch.rand(3, 4, 8).bernoulli()


def sorted_by_value(h: Any, table: Any, ids: Any) -> Any:
    return h.sort(-1).values.cumsum(-1) + h.argsort(1) + h.cumprod(-1) + h.logcumsumexp(1)


def masked(h: Any, table: Any, ids: Any) -> Any:
    mask = ids[..., None] > 5
    return torch.where(mask, h, h.tanh()).masked_fill(mask, 0.5).masked_scatter(h > 0, h)


def resized(h: Any, table: Any, ids: Any) -> Any:
    images = h.permute(0, 3, 1, 2)
    return sum(
        F.interpolate(images, scale_factor=2, mode=mode).sum()
        for mode in ("nearest", "bilinear", "bicubic", "area")
    )


def sampled(h: Any, table: Any, ids: Any) -> Any:
    grid = h[..., :2].tanh()
    return F.grid_sample(h.permute(0, 3, 1, 2), grid, align_corners=False)


def unfolded(h: Any, table: Any, ids: Any) -> Any:
    columns = F.unfold(h.permute(0, 3, 1, 2), 2)
    return F.fold(columns, (4, 5), 2) + F.pixel_shuffle(h.permute(0, 3, 1, 2), 2).mean()


def pooled(h: Any, table: Any, ids: Any) -> Any:
    values, places = F.max_pool2d(h.permute(0, 3, 1, 2), 2, return_indices=True)
    back = F.max_unpool2d(values, places, 2, output_size=(4, 5))
    return back.sum() + F.lp_pool2d(h, 2.0, 2).sum()


def bags(h: Any, table: Any, ids: Any) -> Any:
    modes = "sum", "mean", "max"
    return h.sum(1) + sum(F.embedding_bag(ids, table, mode=mode) for mode in modes)


def distances(h: Any, table: Any, ids: Any) -> Any:
    far = F.triplet_margin_loss(h, h.roll(1, 0), h.flip(1))
    return torch.cdist(h, table).sum() + F.cosine_similarity(h, h.roll(1, 1), -1).sum() + far


def solved(h: Any, table: Any, ids: Any) -> Any:
    square = h.mT @ h + torch.eye(8)
    return (
        torch.linalg.solve(square, h.mT) + torch.linalg.inv(square)[..., :4] + square.logdet().sum()
    )


def factored(h: Any, table: Any, ids: Any) -> Any:
    square = h.mT @ h + torch.eye(8)
    return (
        torch.linalg.cholesky(square)
        + torch.linalg.qr(square).R
        + torch.linalg.svdvals(square).sum()
    )


def reduced(h: Any, table: Any, ids: Any) -> Any:
    spread = torch.zeros(3, 11, 8).scatter_reduce(1, ids[..., None].expand(3, 4, 8), h, "amax")
    return spread.sum(1) + h.median(1).values + h.kthvalue(2, 1).values + h.amax(1) + h.std(1)


def counted(h: Any, table: Any, ids: Any) -> Any:
    cells = torch.bucketize(h, torch.linspace(-1, 1, 5))
    return (
        F.one_hot(ids, 11).float() @ table + h * cells + torch.searchsorted(table[0].sort()[0], h)
    )


def repeated(h: Any, table: Any, ids: Any) -> Any:
    rows = torch.tril_indices(4, 4)
    return h.repeat_interleave(2, 1) + h[:, rows[0]].mean(1, keepdim=True)


def normed(h: Any, table: Any, ids: Any) -> Any:
    images = h.permute(0, 3, 1, 2)
    scaled = F.instance_norm(images) + F.local_response_norm(images, 3)
    return scaled + F.normalize(images, dim=1) + F.glu(torch.cat([images, images], 1), 1)


def gated(h: Any, table: Any, ids: Any) -> Any:
    return sum(act(h) for act in (F.mish, F.celu, F.selu, F.logsigmoid, F.softsign, F.hardshrink))


def losses(h: Any, table: Any, ids: Any) -> Any:
    flat, numbers = h.flatten(0, 1), ids.flatten() % 8
    return (
        F.kl_div(flat.log_softmax(-1), flat.softmax(-1), reduction="batchmean")
        + F.multi_margin_loss(flat, numbers)
        + F.smooth_l1_loss(flat, flat.flip(0).detach())
        + F.poisson_nll_loss(flat, flat.detach().exp())
        + F.gaussian_nll_loss(flat, flat.detach(), flat.exp())
        + F.binary_cross_entropy(flat.sigmoid(), flat.detach().sigmoid())
    )


def spelled(h: Any, table: Any, ids: Any) -> Any:
    scores = h.transpose(0, 1).log_softmax(-1)
    return F.ctc_loss(scores, ids[:, :2] % 7 + 1, (4, 4, 4), (2, 2, 2))


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    module, padding = nn.TransformerEncoder(layer, 2), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    return (
        module,
        (torch.randn(2, 6, 16),),
        lambda m, x: m(x, src_key_padding_mask=padding).square().sum(),
    )


def adaptive_softmax() -> Built:
    module = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])
    return module, (torch.randn(6, 8), torch.randint(20, (6,))), lambda m, x, y: m(x, y).loss


def picked() -> Built:
    """A step in which the number of rows depends on values."""
    return (
        nn.Linear(8, 8),
        (torch.randn(6, 8),),
        lambda m, x: (m(x)[x[:, 0] > -9] * x[(x[:, 0] > -9).nonzero()[:, 0]]).sum(),
    )


def spectral() -> Built:
    return nn.Linear(8, 8), (torch.randn(3, 8),), lambda m, x: torch.fft.rfft(m(x)).abs().sum()


MODELS = [
    *(
        model(forward.__name__, forward)
        for forward in (
            indexed, written, put, best, drawn, sorted_by_value, masked, bags, distances, solved,
            factored, reduced, counted, repeated, gated, losses, spelled,
        )
    ),
    *(
        model(forward.__name__, forward, 3, 4, 5)
        for forward in (segmented, resized, sampled, unfolded, pooled, normed)
    ),
    encoder, adaptive_softmax, picked, spectral,
]  # fmt: skip
