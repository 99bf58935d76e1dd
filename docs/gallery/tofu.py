"""Cutting every tensor of a model over eight GPUs: bytes sent by five ways to choose the cuts."""

import pandas as pd

import simdev
from simdev.search.tofu.coarse import Coarse
from simdev.search.tofu.plan import communication

RNN = {"model": "rnnlm", "layers": 4, "hidden": 4096, "batch": 512, "length": 20}
MODELS = {
    "RNN, 4 x 4,096 cells": RNN,
    "WResNet-50, 4 times wider": {"model": "wresnet-50", "widen": 4, "batch": 32},
}
sent = {}
for name, graph in MODELS.items():
    question = {"graph": graph, "cluster": "tofu-8x-k80", "strategy": {"*": "gpu:0"}}
    scenario = simdev.load_scenario(question)
    sent[name] = communication(Coarse(scenario.graph, scenario.cluster), 8)
ax = (pd.DataFrame(sent) / 1e9).plot.bar(figsize=(9, 5), rot=0)
for bars in ax.containers:
    ax.bar_label(bars, fmt="%.1f", padding=3)
ax.set(ylabel="GB a step", title="Over eight GPUs")
ax.figure.savefig("tofu.png")
