"""P3 in time: slices of ResNet-50's gradients, coloured by which the next step needs first."""

import simdev
from simdev.report.figures import report_figure

figure = report_figure(simdev.run(simdev.load_scenario("p3-resnet-50")))
figure.savefig("p3.png")
