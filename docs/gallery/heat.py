"""Samples a second of ResNet-50 on four GPUs, by batch size and bandwidth of the links."""

import numpy as np
from matplotlib import pyplot as plt

import simdev

BATCHES, RATES = [16, 32, 64, 128, 256], [1, 2, 4, 8, 16, 32]
question = {
    "graph": {"model": "resnet-50", "batch": 64},
    "cluster": "c4140-4x-v100",
    "strategy": "data-parallel",
}
fields = {"graph.batch": BATCHES, "cluster.bandwidth": [f"{rate} GB/s" for rate in RATES]}
table = simdev.sweep(question, fields, progress=False)
speed = table["samples_per_s"].to_numpy(float).reshape(len(BATCHES), len(RATES))
figure, ax = plt.subplots(figsize=(9, 5.5))
image = ax.imshow(speed, aspect="auto", origin="lower")
for (row, column), value in np.ndenumerate(speed):
    ax.text(column, row, f"{value:,.0f}", ha="center", va="center",
            color="white" if value < speed.max() / 2 else "black")  # fmt: skip
ax.set_xticks(range(len(RATES)), RATES)
ax.set_yticks(range(len(BATCHES)), BATCHES)
ax.set(xlabel="bandwidth of each link (GB/s)", ylabel="batch", title="ResNet-50 on four V100")
ax.grid(False)
figure.colorbar(image, label="samples / s")
figure.savefig("heat.png")
