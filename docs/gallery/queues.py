"""One graph, placed alike, under two rules for transfers."""

from dataclasses import replace

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import chart_of, draw_gantt

OPS = {"A": (10, ""), "B": (20, "A"), "C": (30, "A"), "D": (40, "A"), "E": (15, "BCD")}
SENT = {"A": 10, "B": 4, "C": 20, "D": 30, "E": 0}  # MB, at 1 GB/s
ops = [{"name": name, "time": f"{ms} ms", "inputs": list(inputs),
        "outputs": [{"bytes": f"{SENT[name]} MB"}]}
       for name, (ms, inputs) in OPS.items()]  # fmt: skip
links = {"all_to_all": {"bandwidth": "1 GB/s"}}
cluster = {"devices": [{"name": f"gpu:{i}"} for i in range(3)], "links": links}
place = {"A": "gpu:0", "B": "gpu:1", "C": "gpu:2", "D": "gpu:0", "E": "gpu:1"}
base = {"graph": {"ops": ops}, "strategy": place}
figure, panels = plt.subplots(2, 1, figsize=(9.5, 6.5))
for queues, panel in zip(("parallel", "half-duplex"), panels, strict=True):
    question = base | {"cluster": cluster | {"queues": queues}}
    report = simdev.run(simdev.load_scenario(question))
    title = f'"queues": "{queues}", {report.seconds * 1e3:.0f} ms'
    draw_gantt(replace(chart_of(report), title=title, end_ps=115 * 10**9), panel)
figure.savefig("queues.png")
