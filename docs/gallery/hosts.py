"""When the host is slower than its GPU: a step of ResNet-50 on one measured H100, by batch."""

from matplotlib import pyplot as plt

import simdev
from simdev.files.examples import examples_folder

question = {
    "graph": {"model": "resnet-50", "batch": 64},
    "profile": [str(examples_folder() / "profiles/h100/resnet-50.h100-sxm.jsonl")],
    "cluster": {"devices": [{"name": "gpu:0", "kind": "h100-sxm"}], "links": []},
    "strategy": {"placement": {"*": "gpu:0"}, "order": "program"},
    "options": {"steps": "repeated", "engine": "compiled"},
}
BATCHES = [4, 8, 16, 32, 64, 128]
figure, ax = plt.subplots(figsize=(9, 5.5))
for label, host in (("GPU alone", {}), ("with its host", {"host": {"mode": "eager"}})):
    table = simdev.sweep(
        question | {"cluster": question["cluster"] | host}, {"graph.batch": BATCHES}, progress=False
    )
    ax.plot(BATCHES, 1e3 * table["step_time_s"], marker="o", label=label)
ax.set(
    xscale="log", yscale="log", xlabel="batch", ylabel="step (ms)", title="ResNet-50 on one H100"
)
ax.set_xticks(BATCHES, BATCHES)
ax.legend()
figure.savefig("hosts.png")
