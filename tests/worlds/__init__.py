"""Worlds of tests: graphs, clusters, costs, scenarios and task graphs, by hand and drawn.

``graphs``, ``clusters`` and ``costs`` make the parts, ``scenarios`` whole questions, ``tape`` draws
them. ``hosts`` and ``host_worlds`` have hosts; the ops of ``split_graphs`` and ``sharded`` are cut.
``task_graphs``, ``programs`` and ``traces`` are what lowering and the engines make of questions.
``measured_gnmt`` and ``placeto`` are questions that others published.
``runs`` judges what engines give, and ``server`` asks a server of this process.
"""
