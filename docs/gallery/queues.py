"""One graph, placed alike, under two rules for transfers."""

from dataclasses import replace

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import plot_gantt

OPS = {"A": (10, []), "B": (20, "A"), "C": (30, "A"), "D": (40, "A"), "E": (15, "BCD")}
SENT = {"A": 10, "B": 4, "C": 20, "D": 30, "E": 0}  # MB, at 1 GB/s
ops = [
    {
        "name": name,
        "time": f"{ms} ms",
        "inputs": list(inputs),
        "outputs": [{"bytes": f"{SENT[name]} MB"}],
    }
    for name, (ms, inputs) in OPS.items()
]
cluster = {
    "devices": [{"name": f"gpu:{i}"} for i in range(3)],
    "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
}
strategy = {"A": "gpu:0", "B": "gpu:1", "C": "gpu:2", "D": "gpu:0", "E": "gpu:1"}
base = simdev.load_scenario({"graph": {"ops": ops}, "cluster": cluster, "strategy": strategy})
figure, panels = plt.subplots(2, 1, figsize=(11, 7))
for queues, panel in zip(("parallel", "half-duplex"), panels, strict=True):
    report = simdev.run(replace(base, cluster=replace(base.cluster, queues=queues)))
    plot_gantt(report.trace, panel)
    panel.set_xlim(0, 125)
    panel.set_title(f'"queues": "{queues}", {report.seconds * 1e3:.0f} ms', pad=28)
figure.savefig("queues.png")
