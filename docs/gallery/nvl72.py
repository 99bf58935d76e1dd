"""GB200 NVL72: 72 GPUs around one fabric of NVLink switches."""

from matplotlib import pyplot as plt

from simdev.files import read_preset
from simdev.report.figures import plot_cluster

figure, ax = plt.subplots(figsize=(9, 3))
plot_cluster(read_preset("gb200-nvl72"), ax)
figure.savefig("nvl72.png")
