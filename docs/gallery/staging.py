"""From GPU to GPU by way of the host's memory: whole, then in chunks that overlap."""

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import plot_gantt

graph = {"ops": [{"name": "make", "time": "5 ms", "outputs": [{"bytes": "96 MB"}]},
                 {"name": "use", "time": "5 ms", "inputs": ["make"]}]}  # fmt: skip
wires = [{"ends": [gpu, "host"], "bandwidth": "12 GB/s"} for gpu in ("gpu:0", "gpu:1")]
figure, panels = plt.subplots(2, 1, figsize=(11, 7))
for chunk, panel in zip((96, 16), panels, strict=True):
    host = {"name": "host", "kind": "host-cpu", "staging": True, "chunk": f"{chunk} MB"}
    gpus = [{"name": name, "transit": False} for name in ("gpu:0", "gpu:1")]
    cluster = {"queues": "link", "devices": [*gpus, host], "links": wires}
    question = {"graph": graph, "cluster": cluster, "strategy": {"make": "gpu:0", "use": "gpu:1"}}
    report = simdev.run(simdev.load_scenario(question))
    plot_gantt(report.trace, panel)
    panel.set_xlim(0, 27)
    panel.set_title(f"chunks of {chunk} MB: {report.seconds * 1e3:.1f} ms", pad=28)
figure.savefig("staging.png")
