"""Memory of a training step of BERT-base, and what is live at its peak."""

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import plot_memory

question = {
    "graph": {"model": "bert-base", "batch": 32, "length": 128},
    "cluster": {
        "devices": [{"name": "gpu:0", "kind": "h100-sxm", "memory": "80 GiB"}],
        "links": [],
    },
    "strategy": {"*": "gpu:0"},
}
trace = simdev.run(simdev.load_scenario(question)).trace
memory = trace.memory[0]
kinds = sorted(((k, n) for k, n in memory.at_peak.items() if n), key=lambda item: -item[1])
figure, (curve, bars) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=[2, 1])
plot_memory(trace, curve)
curve.axvline(memory.peak_ps / 1e9, color="#C01C28", linestyle=":")
drawn = bars.barh([kind for kind, _ in kinds], [size / 2**30 for _, size in kinds])
bars.bar_label(drawn, fmt="%.2f", padding=4)
bars.invert_yaxis()
bars.set(xlabel="GiB", title=f"live at the peak of {memory.peak / 2**30:.2f} GiB")
figure.savefig("memory.png")
