"""Placing Inception-V3 on four CPUs: the best step so far, by how many placements were asked."""

from matplotlib import pyplot as plt

import simdev
from simdev.search import search

scenario = simdev.load_scenario("inception-v3-4x-cpu")
figure, ax = plt.subplots(figsize=(9, 5.5))
for method in ("random", "greedy", "cross-entropy", "annealing", "adaptive"):
    curve = search(scenario, method, budget=2000, prepare=["pair"]).curve
    ax.step(curve["evaluation"], curve["step_time_s"], where="post", label=method)
ax.axhline(search(scenario, "m-sct", prepare=["pair"]).cost.seconds, color="black", linestyle=":")
ax.annotate("m-SCT, one evaluation", (1, 5.46), (4, 4), textcoords="offset points")
ax.set(xscale="log", xlabel="evaluations", ylabel="step (s)", title="Inception-V3 on four CPUs")
ax.legend(loc="lower left")
figure.savefig("methods.png")
