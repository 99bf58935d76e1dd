"""An all_reduce over the 16 GPUs of two DGX-H100: which form is best for which size."""

from matplotlib import pyplot as plt

from simdev.costs.collectives import CollectiveModel
from simdev.files import read_preset

cluster = read_preset("dgx-h100", 2)
ranks = [device.name for device in cluster.devices if device.kind == "h100-sxm"]
sizes = [2**k for k in range(10, 31)]
figure, ax = plt.subplots(figsize=(9, 5.5))
for form, width in (("auto", 7), ("ring", 2), ("tree", 2)):
    model = CollectiveModel(cluster, (), form)
    times = [float(model.cost("all_reduce", ranks, size).seconds) * 1e6 for size in sizes]
    ax.loglog(sizes, times, label=form, linewidth=width, color="#CFCFCF" if width > 2 else None)
ax.set_xticks([2**10, 2**15, 2**20, 2**25, 2**30], ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"])
ax.set(xlabel="bytes on each GPU", ylabel="time (us)", title="all_reduce over two DGX-H100")
ax.legend()
figure.savefig("allreduce.png")
