"""Graphs of networkx: node-link JSON and GraphML, with the usual attributes of nodes and edges.

A node is an op, an edge a tensor that its end reads. Known attributes are the fields of
``simdev.nouns.graph``; any other is kept with the op. Pickles are not read, for they can run any
code.

``formats.import_file`` calls it. A new field of an op that such files may have is added here too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..files.reading import parse_json
from ..files.shape import plain
from ..ground.errors import InputError, collecting, refuse
from ..ground.units import written
from ..nouns.graph import EDGE, KIND, OUTPUT, SIZES, TIME, Graph, Op, Tensor, only, size_of, time_of
from .imported import Imported, Machine, graph_scenario

if TYPE_CHECKING:
    import networkx as nx

ENTITY = "<!ENTITY"


def parse_network(text: str) -> nx.DiGraph[Any]:
    """The graph of node-link JSON or of GraphML. Raises InputError."""
    import networkx as nx

    network = _graphml(text) if text.lstrip().startswith("<") else _node_link(text)
    if not network.is_directed():
        raise InputError(
            "the graph is not directed: nothing tells which op reads what another makes"
        )
    if network.is_multigraph():
        return _without_parallels(network)
    return network if isinstance(network, nx.DiGraph) else nx.DiGraph(network)


def _graphml(text: str) -> nx.Graph[Any]:
    import xml.etree.ElementTree as Xml

    import networkx as nx

    if ENTITY in text:
        raise InputError("declares XML entities: refused, they can unfold without bound")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes without a type, which are texts
            return nx.parse_graphml(text)
    except Xml.ParseError as error:
        line, column = error.position
        reason = str(error).partition(":")[0]
        raise InputError(f"line {line}, column {column}: not XML: {reason}") from None
    except nx.NetworkXException as error:
        raise InputError(f"not GraphML: {error}") from None
    # errors of networkx when it converts values
    except (KeyError, ValueError, TypeError):
        raise InputError("not GraphML: a value does not fit its key, or has none") from None


def _node_link(text: str) -> nx.Graph[Any]:
    import networkx as nx

    value = parse_json(text)
    if not isinstance(value, dict) or not isinstance(value.get("nodes"), list):
        raise InputError(
            "not node-link JSON: needs an object with lists of nodes and of links (or edges)"
        )
    # networkx wrote "links" before 3.4, and writes "edges" since.
    edges = "links" if "links" in value else "edges"
    problems = list(_node_link_problems(value, edges))
    refuse(problems)
    return nx.node_link_graph({"directed": True, "multigraph": False, **value}, edges=edges)


def _node_link_problems(value: Mapping[str, Any], edges: str) -> Iterator[str]:
    if not isinstance(value.get(edges), list):
        yield f"{edges}: must be a list"
        return
    try:
        dict(value.get("graph", {}))  # networkx wrote a list of pairs before 2.0
    except (TypeError, ValueError):
        yield "graph: must be an object"
    names: set[Any] = set()
    for i, node in enumerate(value["nodes"]):
        name = node.get("id") if isinstance(node, dict) else None
        if not isinstance(name, (str, int)):
            yield f"nodes[{i}].id: must be a text or a whole number, got {written(name)}"
        elif name in names:
            yield f"nodes[{i}].id: {written(name)} stands twice"
        else:
            names.add(name)
    for i, edge in enumerate(value[edges]):
        if not isinstance(edge, dict):
            yield f"{edges}[{i}]: must be an object"
            continue
        for end in ("source", "target"):
            if not isinstance(edge.get(end), (str, int)) or edge[end] not in names:
                yield f"{edges}[{i}].{end}: no node with the id {written(edge.get(end))}"


def _without_parallels(graph: nx.Graph[Any]) -> nx.DiGraph[Any]:
    """A multigraph with parallel edges merged into one, whose bytes are their sum."""
    import networkx as nx

    network: nx.DiGraph[Any] = nx.DiGraph()
    network.graph.update(graph.graph)
    network.add_nodes_from(graph.nodes(data=True))
    for first, second, fields in graph.edges(data=True):
        if network.has_edge(first, second):
            before = network.edges[first, second]
            sizes = [_size(parallel, EDGE) for parallel in (before, fields)]
            fields = {**before}
            if None not in sizes:
                fields = {key: before[key] for key in before if key not in EDGE}
                fields["bytes"] = sum(filter(None, sizes))
        network.add_edge(first, second, **fields)
    return network


def network_scenario(
    network: nx.DiGraph[Any], machine: Machine, name: str | None = None
) -> Imported:
    """The scenario of a network on a machine. Raises InputError with every problem.

    A node has an output for each different size of its out-edges. An edge without a size reads the
    node's own ``bytes``; where the node has none either, the end of the edge only waits. Times are
    seconds unless an attribute or a unit says otherwise.
    """
    problems: list[str] = []
    sizes = {node: _outputs(network, node, problems) for node in network.nodes}
    ops: list[Op] = []
    kept: set[str] = set()
    for node, fields in network.nodes(data=True):
        with collecting(problems, f"node {node}: "):
            op = _op(str(node), fields)
            kept |= set(op.attrs)
            # A wrong size of an edge has been reported already; its tensor would be wrong too.
            if not problems:
                ops.append(_with_edges(op, network, node, sizes))
    refuse(problems)
    if not ops:
        raise InputError("the graph has no nodes")
    dropped = {
        str(key) for *_, fields in network.edges(data=True) for key in fields if key not in EDGE
    }
    notes = [f"left out attributes of edges: {', '.join(sorted(dropped))}"] if dropped else []
    notes += [f"kept as attributes, not interpreted: {', '.join(sorted(kept))}"] if kept else []
    return graph_scenario(Graph(name or "networkx graph", tuple(ops)), machine, "networkx", notes)


def _outputs(network: nx.DiGraph[Any], node: Any, problems: list[str]) -> list[int]:
    """The sizes of a node's outputs: its own first, then its out-edges' sizes, each once."""
    places = [(f"node {node}: ", network.nodes[node], OUTPUT)]
    places += [
        (f"edge {node} -> {end}: ", fields, EDGE)
        for _, end, fields in network.out_edges(node, data=True)
    ]
    sizes: dict[int, None] = {}
    for place, fields, known in places:
        with collecting(problems, place):
            size = _size(fields, known)
            if size is not None:
                sizes[size] = None
    return list(sizes)


def _size(fields: Mapping[str, Any], known: Sequence[str]) -> int | None:
    """The bytes in the first of these attributes that is there, or None."""
    name = next((name for name in known if fields.get(name) is not None), None)
    return None if name is None else size_of(fields, name)


def _op(name: str, fields: Mapping[str, Any]) -> Op:
    """The op of a node without its edges; attributes unknown to simdev become its ``attrs``."""
    rest = {key: value for key, value in fields.items() if value is not None}
    kind = next((str(rest.pop(key)) for key in KIND if isinstance(rest.get(key), str)), "op")
    time = only(rest, tuple(TIME), "time")
    values: dict[str, Any] = {key: _size(rest, (key,)) or 0 for key in SIZES if key in rest}
    if time is not None:
        values["time"] = time_of(time, rest[time])
    values |= {key: str(rest[key]) for key in ("phase", "colocate") if key in rest}
    sizes = [key for key in OUTPUT if _size(rest, (key,)) is not None]
    attrs = {key: plain(rest[key]) for key in rest if key not in {*values, time, *sizes}}
    problems = list(Op(name).problems())
    refuse(problems)
    return Op(name, kind, attrs=attrs, **values)


def _with_edges(op: Op, network: nx.DiGraph[Any], node: Any, sizes: Mapping[Any, list[int]]) -> Op:
    """The op with its inputs and outputs."""
    inputs, waits = [], []
    for producer, _, fields in network.in_edges(node, data=True):
        if not sizes[producer]:
            waits.append(str(producer))
            continue
        size = _size(fields, EDGE)
        inputs.append(f"{producer}:{0 if size is None else sizes[producer].index(size)}")
    outputs = tuple(map(Tensor, sizes[node]))
    return replace(op, inputs=tuple(inputs), control_inputs=tuple(waits), outputs=outputs)
