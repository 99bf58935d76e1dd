"""Worlds for tests: graphs, clusters, costs, scenarios and task graphs, by hand and random.

``graphs``, ``clusters`` and ``costs`` make the parts, ``scenarios`` whole questions; ``tape`` draws
random ones. ``hosts`` and ``host_worlds`` add hosts; ``split_graphs`` and ``sharded`` split ops.
``task_graphs``, ``programs`` and ``traces`` make the outputs of lowering and of the engines.
``measured_gnmt`` and ``placeto`` are questions that others published.
``runs`` checks the traces of engines, and ``server`` sends requests to a server in this process.
"""
