"""Ops that look elements up by an index: which ones is known only when it runs, so the dimension is
taken whole.

An embedding is a product with a one-hot matrix: split along its rows it is a reduction, with one
row hit a point.
"""

from __future__ import annotations

from fractions import Fraction

from ..description import Access, Call, Description, Entry, Output, axes, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import dimension, numbered, sized


def embedding(call: Call) -> Description:
    """y[.., d] = weight[index[..], d]: a sum over the rows v, of which one is hit.

    Split along v it is a reduction.
    """
    weight, index = call.inputs
    points = numbered(index)
    v, d = axes("v d", weight)
    return Description(
        outputs=(Output((*points, d), over=(v,)),),
        inputs=(Access((v, d), at_most=(*points, d)), Access(points)),
        parameters=(0,),
    )


def embedding_backward(call: Call) -> Description:
    """dweight[v, d] = Sum over .. of dy[.., d] where index[..] is v: one addition an element of
    dy.
    """
    gradient, index = call.inputs
    points = numbered(index)
    v, d = axes("v d", call.outputs[0])
    return Description(
        outputs=(Output((v, d), over=points),),
        inputs=(Access((*points, Axis("d", gradient[-1]))), Access(points)),
        flops=(per(Fraction(1, max(1, v.size)), *points, v, d),),
        gradients=(0,),
        local=sized(num_weights=(v,)),
    )


def gather(call: Call) -> Description:
    """y[.., i, ..] = x[.., index[.., i, ..], ..]: looked up along ``dim``, where x stays whole."""
    along = dimension(int(call.attrs.get("dim", 0)), len(call.inputs[0]))
    points = numbered(call.outputs[0])
    index: tuple[Entry, ...] = tuple(None if i == along else axis for i, axis in enumerate(points))
    return Description((Output(points),), (Access(index, at_most=points), Access(points)))


def index_select(call: Call) -> Description:
    """y[.., i, ..] = x[.., index[i], ..]: slices of x along ``dim`` where it stays whole."""
    along = dimension(int(call.attrs.get("dim", 0)), len(call.inputs[0]))
    points = numbered(call.outputs[0])
    index: tuple[Entry, ...] = tuple(None if i == along else axis for i, axis in enumerate(points))
    return Description((Output(points),), (Access(index, at_most=points), Access((points[along],))))


def index_add(call: Call) -> Description:
    """y[.., v, ..] = x[.., v, ..] + Sum over i of source[.., i, ..] where index[i] is v."""
    points = numbered(call.outputs[0])
    along = dimension(int(call.attrs.get("dim", 0)), len(points))
    i = Axis("i", call.inputs[1][0])
    source = (*points[:along], i, *points[along + 1 :])
    share = Fraction(1, max(1, points[along].size))
    return Description(
        outputs=(Output(points, over=(i,)),),
        inputs=(Access(points), Access((i,)), Access(source)),
        flops=(per(share, *points, i),),
    )


register(
    "embedding", embedding, "embedding", operands="weight[v, d], index[..]", outputs="y[.., d]"
)
register(
    "embedding_backward",
    embedding_backward,
    "embedding",
    traits=Traits(linear_in=0),
    operands="dy[.., d], index[..]",
    outputs="dweight[v, d]",
    attributes="num_weights, padding_idx",
)
register("gather", gather, "data_movement", operands="x, index", outputs="y", attributes="dim")
register(
    "index_select",
    index_select,
    "data_movement",
    operands="x, index[i]",
    outputs="y",
    attributes="dim",
)
register(
    "index_add",
    index_add,
    "embedding",
    operands="x, index[i], source",
    outputs="y",
    attributes="dim",
)
