"""Plans of Llama 3 8B on 16 H100: those that no other beats in time and memory."""

from matplotlib import pyplot as plt

import simdev

fields = {"cp": 1, "schedule": ["1F1B", "ZB-H1"], "microbatch": [1, 2]}
plans = simdev.plan("llama3-8b", "dgx-h100", nodes=2, global_batch=64, options=fields, front=True)
front = plans[plans["front"]].sort_values("peak_bytes")
figure, ax = plt.subplots(figsize=(10, 6))
ax.step(front["peak_bytes"] / 2**30, front["step_time_s"], where="post", color="#B0B0B0")
for mode, group in front.groupby("recompute"):
    memory = group["peak_bytes"] / 2**30
    ax.scatter(memory, group["step_time_s"], s=70, label=f"recompute {mode}", zorder=3)
for i, plan in enumerate(front.itertuples()):
    text, place = f"{plan.dp} x {plan.tp} x {plan.pp}", (plan.peak_bytes / 2**30, plan.step_time_s)
    ax.annotate(text, place, (7, 5) if i % 2 else (-6, -14), textcoords="offset points", size=8,
                ha="left" if i % 2 else "right")  # fmt: skip
ax.set(xlabel="memory of the fullest GPU (GiB)", ylabel="step (s)",
       title="Llama 3 8B on 16 H100: dp x tp x pp of the plans that none beats")  # fmt: skip
ax.margins(0.07)
ax.legend()
figure.savefig("front.png")
