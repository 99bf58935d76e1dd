"""Three flows share a link: one after another, or each at its fair share."""

from dataclasses import replace

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import chart_of, draw_gantt

SIZES = {"a": 40, "b": 20, "c": 60}  # MB over a link of 1 GB/s, ready after 0, 10 and 20 ms
ops = [{"name": name, "time": f"{10 * i} ms", "outputs": [{"bytes": f"{SIZES[name]} MB"}]}
       for i, name in enumerate(SIZES)]  # fmt: skip
ops += [{"name": f"read {name}", "time": "5 ms", "inputs": [name]} for name in SIZES]
devices = [{"name": f"gpu:{i}"} for i in range(4)] + [{"name": "switch", "kind": "switch"}]
wires = [{"ends": [f"gpu:{i}", "switch"], "bandwidth": "1 GB/s"} for i in range(4)]
place = {"a": "gpu:0", "b": "gpu:1", "c": "gpu:2", "read ?": "gpu:3"}
cluster = {"devices": devices, "links": wires}
base = {"graph": {"ops": ops}, "strategy": place}
figure, panels = plt.subplots(2, 1, figsize=(9.5, 7.5))
for queues, panel in zip(("link", "fair"), panels, strict=True):
    question = base | {"cluster": cluster | {"queues": queues}}
    report = simdev.run(simdev.load_scenario(question))
    title = f'"queues": "{queues}", {report.seconds * 1e3:.0f} ms'
    draw_gantt(replace(chart_of(report), title=title), panel)
figure.savefig("fair.png")
