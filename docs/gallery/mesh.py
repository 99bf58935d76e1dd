"""A DGX-1V: the hybrid cube mesh of NVLinks, and PCIe beneath it."""

from simdev.files import read_preset
from simdev.report.figures import cluster_figure

figure = cluster_figure(read_preset("dgx-1v"))
figure.savefig("mesh.png")
