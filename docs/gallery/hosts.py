"""When the host is slower than its GPU: a step of ResNet-50 on one measured H100, by batch."""

from matplotlib import pyplot as plt

import simdev
from simdev.files.examples import examples_folder

BATCHES, TICKS = [4, 8, 16, 32, 64, 128], [5, 10, 20, 30, 50]
profile = str(examples_folder() / "profiles/h100/resnet-50.h100-sxm.jsonl")
gpu = {"devices": [{"name": "gpu:0", "kind": "h100-sxm"}], "links": []}
figure, ax = plt.subplots(figsize=(9, 5.5))
for label, host in (("GPU alone", {}), ("with its host", {"host": {"mode": "eager"}})):
    question = {
        "graph": {"model": "resnet-50", "batch": 64},
        "profile": [profile],
        "cluster": gpu | host,
        "strategy": {"placement": {"*": "gpu:0"}, "order": "program"},
        "options": {"steps": "repeated", "engine": "compiled"},
    }
    table = simdev.sweep(question, {"graph.batch": BATCHES}, progress=False)
    ax.loglog(BATCHES, 1e3 * table["step_time_s"], marker="o", label=label)
ax.set(xlabel="batch", ylabel="step (ms)", title="ResNet-50 on one H100")
ax.set_xticks(BATCHES, BATCHES)
ax.set_yticks(TICKS, TICKS)
ax.minorticks_off()
ax.legend()
figure.savefig("hosts.png")
