"""From GPU to GPU by way of the host's memory: whole, then in chunks that overlap."""

from dataclasses import replace

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import chart_of, draw_gantt

graph = {"ops": [{"name": "make", "time": "5 ms", "outputs": [{"bytes": "96 MB"}]},
                 {"name": "use", "time": "5 ms", "inputs": ["make"]}]}  # fmt: skip
wires = [{"ends": [gpu, "host"], "bandwidth": "12 GB/s"} for gpu in ("gpu:0", "gpu:1")]
gpus = [{"name": name, "transit": False} for name in ("gpu:0", "gpu:1")]
place = {"make": "gpu:0", "use": "gpu:1"}
figure, panels = plt.subplots(2, 1, figsize=(9.5, 6.5))
for chunk, panel in zip((96, 16), panels, strict=True):
    host = {"name": "host", "kind": "host-cpu", "staging": True, "chunk": f"{chunk} MB"}
    cluster = {"queues": "link", "devices": [*gpus, host], "links": wires}
    question = {"graph": graph, "cluster": cluster, "strategy": place}
    report = simdev.run(simdev.load_scenario(question))
    title = f"chunks of {chunk} MB: {report.seconds * 1e3:.1f} ms"
    draw_gantt(replace(chart_of(report), title=title, end_ps=26 * 10**9), panel)
figure.savefig("staging.png")
