"""Worlds of tests: graphs, clusters, costs, scenarios and task graphs, by hand and drawn.

``graphs``, ``clusters`` and ``costs`` make the parts, ``scenarios`` whole questions; ``tape`` draws
them. ``task_graphs``, ``programs`` and ``traces`` are what lowering and the engines make of them.
"""
