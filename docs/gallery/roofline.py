"""Every operator of GPT-2 medium as measured on an H100, under the roofline of its datasheet."""

import numpy as np
from matplotlib import pyplot as plt

from simdev.files import read_profile
from simdev.files.examples import examples_folder
from simdev.nouns.semantics.keys import load_of

profile = read_profile(examples_folder() / "profiles/h100/gpt2-medium.h100-sxm.jsonl")
loads = [(load_of(row.key), float(row.seconds)) for row in profile.rows.values()]
figure, ax = plt.subplots(figsize=(9, 6))
for name in ("gemm", "norm", "softmax", "elementwise", "reduction", "optimizer"):
    drawn = [pair for pair in loads if pair[0] and pair[0].op_class == name and pair[0].flops > 1e6]
    intensity = [load.flops / (load.read + load.written) for load, _ in drawn]
    ax.scatter(intensity, [load.flops / s / 1e12 for load, s in drawn], label=name, alpha=0.8)
x = np.logspace(-2, 3.2)
ax.plot(x, np.minimum(67, 3.35 * x), color="black", linewidth=1)
ax.annotate("67 TFLOP/s", (150, 80))
ax.annotate("3,350 GB/s", (0.2, 1.1), rotation=36)
ax.set(xscale="log", yscale="log", ylim=(0.005, 200), xlabel="FLOPs a byte",
       ylabel="TFLOP/s reached", title="GPT-2 medium in float32 on an H100")  # fmt: skip
ax.legend()
figure.savefig("roofline.png")
