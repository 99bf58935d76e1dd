"""P3 in time: slices of ResNet-50's gradients, coloured by which the next step needs first."""

from matplotlib import pyplot as plt

import simdev
from simdev.report.figures import chart_of, draw_gantt

figure, ax = plt.subplots(figsize=(9.5, 7))
draw_gantt(chart_of(simdev.run(simdev.load_scenario("p3-resnet-50"))), ax)
figure.savefig("p3.png")
