"""Six ways to cut one convolution over four P100: time of a part, and bytes that it costs."""

from matplotlib import pyplot as plt

import simdev

CONV = "block_3/conv_1/conv2d"
CUTS = [{"n": 4}, {"k": 4}, {"p": 4}, {"p": 2, "q": 2}, {"n": 2, "k": 2}, {"c": 4}]
figure, (time, sent) = plt.subplots(1, 2, figsize=(9.5, 4.5), sharey=True)
for split in CUTS:
    question = {
        "graph": {"model": "vgg-16", "batch": 32},
        "cluster": {"preset": "flexflow-p100", "nodes": 1},
        "strategy": {
            "placement": {"*": "gpu:0"},
            "partition": {CONV: {"split": split, "devices": [f"gpu:{i}" for i in range(4)]}},
        },
    }
    report = simdev.run(simdev.load_scenario(question))
    (cost,) = [cost for cost in report.splits if cost.op == CONV]
    name = ", ".join(f"{axis} in {parts}" for axis, parts in split.items())
    time.barh(name, cost.longest_ps / 1e9, color="#0072B2")
    sent.barh([name], (cost.bytes_in + cost.sync_bytes) / 1e6, color="#E69F00")
time.axvline(cost.whole_ps / 4e9, color="black", linestyle=":")
time.set(xlabel="longest part (ms); dotted: a fourth of the whole", title="VGG-16, block 3, conv 1")
sent.set_xlabel("MB sent to the parts, and to add up")
time.invert_yaxis()
figure.savefig("soap.png")
