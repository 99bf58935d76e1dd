"""Memory of a training step of BERT-base, and what is live at its peak."""

import pandas as pd
from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import plot_memory

gpu = {"name": "gpu:0", "kind": "h100-sxm", "memory": "80 GiB"}
question = {
    "graph": {"model": "bert-base", "batch": 32, "length": 128},
    "cluster": {"devices": [gpu], "links": []},
    "strategy": {"*": "gpu:0"},
}
trace = simdev.run(simdev.load_scenario(question)).trace
memory = trace.memory[0]
live = pd.Series(memory.at_peak).loc[lambda size: size > 0].sort_values() / 2**30
figure, (curve, bars) = plt.subplots(2, 1, figsize=(9, 6.5), height_ratios=[2, 1])
plot_memory(trace, curve)
curve.axvline(memory.peak_ps / 1e9, color="#C01C28", linestyle=":")
bars.bar_label(bars.barh(live.index, live), fmt="%.2f", padding=4)
bars.set(xlabel="GiB", title=f"live at the peak of {memory.peak / 2**30:.2f} GiB")
figure.savefig("memory.png")
