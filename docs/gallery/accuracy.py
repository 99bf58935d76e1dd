"""Training steps measured on one H100, and as simulated from profiles of their operators."""

from matplotlib import pyplot as plt

from benchmarks.h100 import by_phases, fit, measured_steps, simulated

SLOW = ("nasnet-mobile", "resnet-50")  # as right as the others, but longer to simulate
steps = [step for step in measured_steps() if step.profiled and step.model not in SLOW]
figure, ax = plt.subplots(figsize=(9, 5.5))
for place, step in enumerate(sorted(steps, key=lambda step: step.line["wall_s"])):
    classes = fit(other for other in measured_steps() if other.model != step.model)
    seconds = simulated(by_phases(step, classes), step.costs)
    error = 100 * (seconds / step.line["wall_s"] - 1)
    ax.barh(place, error, color="#0072B2")
    ax.annotate(f"{step.model}, {1e3 * step.line['wall_s']:.1f} ms", (-30, place), va="center")
    ax.annotate(f"{error:+.1f} %", (20, place), va="center")
ax.set(xlim=(-31, 27), yticks=[], xlabel="simulated over measured (%)", title="Steps on one H100")
figure.savefig("accuracy.png")
