"""GPT-2 medium, measured on an H100, in a pipeline of four: ranks, messages and memory."""

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import chart_of, draw_gantt, plot_memory

report = simdev.run(simdev.load_scenario("gpt2-medium-4x-h100-pipeline"))
figure, (gantt, memory) = plt.subplots(2, 1, figsize=(9.5, 8), sharex=True, height_ratios=[3, 2])
draw_gantt(chart_of(report), gantt)
plot_memory(report.trace, memory)
gantt.set_xlabel("")
figure.savefig("pipeline.png")
