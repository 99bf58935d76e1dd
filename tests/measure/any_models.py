"""Small models that cover the ways in which people write training steps, each with a builder.

Every builder returns (module, inputs, loss), as ``simdev profile FILE:FUNCTION`` expects.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

Built = tuple[Any, Any, Callable[..., Any]]


def classes(count: int, of: int = 5) -> Any:
    return torch.randint(of, (count,))


def net(width: int = 8) -> Any:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))


def recurrent(kind: Any, **options: Any) -> Built:
    module = kind(6, 7, **options)
    return module, (torch.randn(4, 3, 6),), lambda m, x: m(x)[0].square().sum()


def lstm() -> Built:
    return recurrent(nn.LSTM)


def deep_lstm() -> Built:
    return recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)


def gru() -> Built:
    return recurrent(nn.GRU)


def plain_rnn() -> Built:
    return recurrent(nn.RNN)


class PackedLstm(nn.Module):
    """An LSTM over packed sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 7, batch_first=True)

    def forward(self, x: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2], batch_first=True)
        return self.lstm(packed)[0].data


def packed_lstm() -> Built:
    return PackedLstm(), (torch.randn(3, 4, 6),), lambda m, x: m(x).square().sum()


class Tagger(nn.Module):
    """Takes a batch as keyword arguments and returns an object with the loss, like the models of
    Hugging Face's transformers.
    """

    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        self.embed, self.head, self.made = nn.Embedding(11, 8), nn.Linear(8, 5), made

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        hidden = self.embed(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask.unsqueeze(-1)
        logits = self.head(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return self.made(loss=loss, logits=logits)


class ModelOutput(OrderedDict):
    """A mapping whose entries are also attributes, like the outputs of Hugging Face's models."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.__dict__.update(entries)


@dataclass
class PlainOutput:
    loss: Any
    logits: Any


def words() -> dict[str, Any]:
    ids = torch.randint(11, (3, 4))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones(3, 4, dtype=torch.int64),
        "labels": torch.randint(5, (3, 4)),
    }


def dict_batch() -> Built:
    return Tagger(ModelOutput), words(), lambda m, batch: m(**batch).loss


class Encoding(UserDict):  # type: ignore[type-arg]
    """A tokenizer's result: a mapping that is no dict, with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


def encoding_batch() -> Built:
    batch = Encoding(words())
    return Tagger(ModelOutput), batch, lambda m, batch: m(batch.input_ids, labels=batch.labels)


def keyword_batch() -> Built:
    return (
        Tagger(ModelOutput),
        words(),
        lambda m, input_ids, attention_mask, labels: m(input_ids, attention_mask, labels),
    )


def dict_in_tuple() -> Built:
    return Tagger(ModelOutput), (words(),), lambda m, batch: m(**batch)["loss"]


def model_output() -> Built:
    return Tagger(ModelOutput), (words(),), lambda m, batch: m(**batch)


def dataclass_output() -> Built:
    return Tagger(PlainOutput), (words(),), lambda m, batch: m(**batch)


def tuple_output() -> Built:
    return Tagger(lambda loss, logits: (loss, logits)), words(), lambda m, batch: m(**batch)


def no_loss() -> Built:
    return Tagger(ModelOutput), words(), None


def nested_batch() -> Built:
    batch = {"x": (torch.randn(3, 8), [torch.randn(3, 8)]), "scale": 2.0, "name": "train"}
    return (
        net(),
        (batch, classes(3)),
        lambda m, b, y: F.cross_entropy(m(b["x"][0] + b["scale"] * b["x"][1][0]), y),
    )


class PlainAttribute(nn.Module):
    """Keeps a mask as an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mask = net(), torch.ones(8)
        self.tables = {"a": [torch.randn(8)]}

    def forward(self, x: Any) -> Any:
        return self.body(x * self.mask + self.tables["a"][0])


def plain_attribute() -> Built:
    module = PlainAttribute()
    return module, (torch.randn(3, 8), classes(3)), lambda m, x, y: F.cross_entropy(m(x), y)


def closure() -> Built:
    weight, shift = torch.rand(5), torch.randn(8)
    return (
        net(),
        (torch.randn(3, 8), classes(3)),
        lambda m, x, y: F.cross_entropy(m(x + shift), y, weight=weight),
    )


def class_weights() -> Built:
    criterion = nn.CrossEntropyLoss(weight=torch.rand(5), label_smoothing=0.1)
    return net(), (torch.randn(3, 8), classes(3)), lambda m, x, y: criterion(m(x), y)


def positive_weights() -> Built:
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.rand(5))
    return net(), (torch.randn(3, 8), torch.rand(3, 5)), lambda m, x, y: criterion(m(x), y)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.reentrant = nn.Linear(8, 8), net(), reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.body, self.first(x), use_reentrant=self.reentrant)


def checkpointed() -> Built:
    batch = torch.randn(3, 8), classes(3)
    return Checkpointed(False), batch, lambda m, x, y: F.cross_entropy(m(x), y)


def checkpointed_reentrant() -> Built:
    batch = torch.randn(3, 8), classes(3)
    return Checkpointed(True), batch, lambda m, x, y: F.cross_entropy(m(x), y)


class Tied(nn.Module):
    """One weight for the embedding and the projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


def tied() -> Built:
    ids = torch.randint(11, (3, 4))
    return Tied(), (ids,), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten())


class InPlace(nn.Module):
    """Writes in place: into a view, into a buffer, into its own new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        y.mul_(2).add_(1)
        y[:, :4] += x[:, :4]
        y[:, 4:] = 0
        self.seen += y.detach().mean(0)
        self.seen.copy_(self.seen * 0.9)
        return F.relu_(y) + self.body(x).masked_fill_(x > 1, 0)


def in_place() -> Built:
    return InPlace(), (torch.randn(3, 8),), lambda m, x: m(x).square().mean()


def bfloat16() -> Built:
    module = net().to(torch.bfloat16)
    batch = torch.randn(3, 8, dtype=torch.bfloat16), classes(3)
    return module, batch, lambda m, x, y: F.cross_entropy(m(x).float(), y)


def autocast() -> Built:
    def loss(m: Any, x: Any, y: Any) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            return F.cross_entropy(m(x), y)

    return net(), (torch.randn(3, 8), classes(3)), loss


class Attention(nn.Module):
    def __init__(self, backend: Any, mask: str, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48).to(dtype)
        self.backend, self.mask = backend, mask

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        options: dict[str, Any] = {"is_causal": self.mask == "causal"}
        if self.mask == "bool":
            options["attn_mask"] = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        elif self.mask == "float":
            options["attn_mask"] = torch.zeros(n, 1, t, t, dtype=x.dtype, device=x.device)
        with sdpa_kernel(self.backend):
            return F.scaled_dot_product_attention(q, k, v, **options)


def attention(backend: Any, mask: str, dtype: Any = torch.float32) -> Callable[[], Built]:
    def build() -> Built:
        x = torch.randn(2, 6, 16, dtype=dtype)
        return Attention(backend, mask, dtype), (x,), lambda m, x: m(x).float().square().sum()

    build.__name__ = f"attention_{backend.name.split('_')[0].lower()}_{mask}_{str(dtype)[6:]}"
    return build


ATTENTIONS = [
    attention(backend, mask, dtype)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
    for mask in ("none", "causal", "bool", "float")
    for dtype in (torch.float32, torch.bfloat16)
]


def multihead() -> Built:
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return module, (torch.randn(2, 6, 16),), lambda m, x: m(x).square().sum()


def padded_encoder() -> Built:
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    return (
        module,
        (torch.randn(2, 6, 16),),
        lambda m, x: m(x, src_key_padding_mask=padding).square().sum(),
    )


def frozen() -> Built:
    module = net()
    module[0].requires_grad_(False)
    return module, (torch.randn(3, 8), classes(3)), lambda m, x, y: F.cross_entropy(m(x), y)


def gathering() -> Built:
    """Many kinds of indexing, which fail with random values as indices."""

    class Gathering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(11, 8))
            self.bag = nn.EmbeddingBag(11, 8)

        def forward(self, ids: Any) -> Any:
            rows = self.table[ids]
            taken = torch.gather(rows, 1, ids.unsqueeze(-1).clamp(max=3))
            spread = torch.zeros(3, 11).scatter_add(1, ids, rows.sum(-1))
            picked = torch.index_select(self.table, 0, ids[0])
            top = rows.topk(2, dim=-1).values
            return (
                taken.sum()
                + spread.sum()
                + picked.sum()
                + top.sum()
                + self.bag(ids).square().sum()
                + rows.sort(-1).values.cumsum(-1).sum()
                + rows.amax(-1).sum()
            )

    return Gathering(), (torch.randint(11, (3, 4)),), lambda m, x: m(x)


def ctc() -> Built:
    def loss(m: Any, x: Any, y: Any) -> Any:
        return F.ctc_loss(m(x).log_softmax(-1), y, (6, 6), (3, 3))

    return net(), (torch.randn(6, 2, 8), torch.randint(1, 5, (2, 3))), loss


def images() -> Built:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.ConvTranspose2d(8, 4, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip
    return module, (torch.randn(2, 3, 8, 8), classes(2)), lambda m, x, y: F.cross_entropy(m(x), y)


MODELS = [
    lstm, deep_lstm, gru, plain_rnn, packed_lstm, dict_batch, encoding_batch, keyword_batch,
    dict_in_tuple, model_output, dataclass_output, tuple_output, no_loss, nested_batch,
    plain_attribute, closure, class_weights, positive_weights, checkpointed, checkpointed_reentrant,
    tied, in_place, bfloat16, autocast, multihead, padded_encoder, frozen, gathering, ctc, images,
    *ATTENTIONS,
]  # fmt: skip
