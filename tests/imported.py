"""Files of other tools: a profile of PipeDream, a workload of dnn-partitioning."""

PROFILE = """\
node1 -- Input0 -- forward_compute_time=17.972, backward_compute_time=0.000,\
 activation_size=0.0, parameter_size=0.000
node2 -- LSTM(4, b=2) -- forward_compute_time=1.5, backward_compute_time=2,\
 activation_size=[8.0; 2], parameter_size=3.0
node3 -- __getitem__(1) -- forward_compute_time=0, backward_compute_time=0,\
 activation_size=2.00, parameter_size=0.000
node4 -- Linear(a -- b) -- forward_compute_time=.25, backward_compute_time=1,\
 activation_size=1, parameter_size=4\
 -- stage_id=1
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node4"""


def workload(**changes: object) -> dict:
    """A workload x -> y -> z with backward nodes, whose edges point like the forward ones."""
    nodes = [
        {
            "id": i,
            "name": name,
            "supportedOnFpga": 1,
            "cpuLatency": 10 * ms,
            "fpgaLatency": ms,
            "isBackwardNode": back,
            "colorClass": color,
            "size": 100,
        }
        for i, (name, ms, back, color) in enumerate(
            [("x", 1.5, 0, 1), ("y", 2, False, 2), ("xgrad", 3, True, 1), ("ygrad", 0.5, 1, 2)],
            start=5,
        )
    ]
    edges = [
        {"sourceId": 5, "destId": 6, "cost": 0.25, "size": 8.0},
        {"sourceId": 7, "destId": 8, "cost": 0.75, "size": 64},
    ]
    return {
        "maxSizePerFPGA": 1000.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": nodes,
        "edges": edges,
    } | changes
