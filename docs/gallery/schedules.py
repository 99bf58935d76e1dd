"""Four pipeline schedules of the same work."""

from dataclasses import replace

from matplotlib import pyplot as plt

from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.schedules import named_schedule, stage_times
from simdev.report import analyze
from simdev.report.figures import chart_of, draw_gantt

figure, panels = plt.subplots(4, 1, figsize=(9.5, 10.5))
for name, panel in zip(("GPipe", "1F1B", "ZB-H1", "DualPipe"), panels, strict=True):
    schedule = named_schedule(name, 4, 8)
    times = stage_times(schedule, "10 ms", "10 ms", "8 ms", "0.5 ms")
    trace = simulate(pipeline_task_graph(schedule, times))
    chart = chart_of(analyze(Outcome(trace, schedule=schedule)))
    draw_gantt(replace(chart, title=f"{name}: {trace.end_ps / 1e9:.0f} ms"), panel)
    panel.set(xlim=(0, 320), xlabel="")
figure.supxlabel("time (ms)")
figure.savefig("schedules.png")
