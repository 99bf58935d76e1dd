"""Three flows share a link: one after another, or each at its fair share."""

from dataclasses import replace

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import plot_gantt

sizes = {"a": 40, "b": 20, "c": 60}  # MB over a link of 1 GB/s, ready after 0, 10 and 20 ms
ops = [
    {"name": name, "time": f"{10 * i} ms", "outputs": [{"bytes": f"{size} MB"}]}
    for i, (name, size) in enumerate(sizes.items())
]
ops += [{"name": f"read {name}", "time": "5 ms", "inputs": [name]} for name in sizes]
devices = [{"name": name} for name in ("gpu:0", "gpu:1", "gpu:2", "gpu:3", "switch")]
devices[-1]["kind"] = "switch"
wires = [{"ends": [f"gpu:{i}", "switch"], "bandwidth": "1 GB/s"} for i in range(4)]
place = {"a": "gpu:0", "b": "gpu:1", "c": "gpu:2", "read ?": "gpu:3"}
question = {
    "graph": {"ops": ops},
    "cluster": {"devices": devices, "links": wires},
    "strategy": place,
}
base = simdev.load_scenario(question)
figure, panels = plt.subplots(2, 1, figsize=(11, 8))
for queues, panel in zip(("link", "fair"), panels, strict=True):
    report = simdev.run(replace(base, cluster=replace(base.cluster, queues=queues)))
    plot_gantt(report.trace, panel)
    panel.set_xlim(0, 150)
    panel.set_title(f'"queues": "{queues}", {report.seconds * 1e3:.0f} ms', pad=28)
figure.savefig("fair.png")
