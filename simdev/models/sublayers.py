"""The two halves of a Transformer's layer: attention with its projections, and the feed-forward
part.
"""

from __future__ import annotations

from dataclasses import dataclass

from .ops import attend, gelu, linear, relu, rotary, split_heads
from .step import Value


@dataclass(frozen=True, slots=True)
class Attention:
    """How the layers of a model attend: heads of queries and of keys, fused or written out,
    dropout, biases.

    ``turned``: queries and keys carry their positions by rotary embeddings.
    """

    heads: int
    kv_heads: int | None = None
    fused: bool = True
    drop: bool = False
    bias: bool = True
    turned: bool = False

    def __call__(
        self, x: Value, memory: Value, causal: bool = False, name: str = "attention"
    ) -> Value:
        """(n, t, width) over (n, s, width) to (n, t, width), with weights of its own at the scope
        ``name``.
        """
        width, groups = x.shape[2], self.kv_heads or self.heads
        with x.step.scope(name):
            q = split_heads(linear(x, width, "query", self.bias), self.heads)
            narrow = groups * q.shape[3]
            k = split_heads(linear(memory, narrow, "key", self.bias), groups)
            v = split_heads(linear(memory, narrow, "value", self.bias), groups)
            if self.turned:
                q, k = rotary(q), rotary(k)
            seen = attend(q, k, v, causal, self.fused, self.drop)
            return linear(seen.view(*x.shape), width, "out", self.bias)


def feed_forward(x: Value, inner: int, activation: str = "gelu") -> Value:
    """Two linear layers with an activation between them: "relu", "gelu", or "gelu-tanh"."""
    with x.step.scope("mlp"):
        y = linear(x, inner, "up")
        y = relu(y) if activation == "relu" else gelu(y, approximate=activation == "gelu-tanh")
        return linear(y, x.shape[2], "down")
