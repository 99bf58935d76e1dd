"""What the critical path of a step is spent on, as links get faster."""

from matplotlib import pyplot as plt

import simdev

KINDS = ("compute", "transfer", "queueing")
question = {
    "graph": {"model": "nmt", "batch": 64, "length": 10},
    "cluster": "c4140-4x-v100",
    "strategy": "expert",
}
rates = [0.25, 0.5, 1, 2, 4, 8, 16, 32]
fields = {"cluster.bandwidth": [f"{rate} GB/s" for rate in rates]}
table = simdev.sweep(question, fields, progress=False)
figure, ax = plt.subplots(figsize=(9, 5.5))
ax.stackplot(rates, *(1e3 * table[f"blame_{kind}_s"] for kind in KINDS), labels=KINDS,
             colors=["#0072B2", "#E69F00", "#C9C9C9"])  # fmt: skip
ax.set(xscale="log", xlim=(rates[0], rates[-1]), xlabel="bandwidth of each link (GB/s)",
       ylabel="critical path (ms)", title="A translator in layers on four V100")  # fmt: skip
ax.set_xticks(rates, rates)
ax.legend()
figure.savefig("blame.png")
