"""GB200 NVL72: 72 GPUs around one fabric of NVLink switches."""

from simdev.files import read_preset
from simdev.report.figures import cluster_figure

figure = cluster_figure(read_preset("gb200-nvl72"))
figure.savefig("nvl72.png")
