"""Strategies of split ops."""

from __future__ import annotations

from simdev.nouns.strategy import Configuration
from worlds.split_graphs import cluster, linears

C = Configuration


GRAPH, ON = linears(), cluster()


FLEXFLOW = """3
conv1
0
4
2 1 1 2
4
0 1 2 3
relu1 0 4  1 1 1 4  4  3 2 1 0
conv2
0
4
1 1 2 1
0
"""
