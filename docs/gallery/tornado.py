"""What if one thing were twice as fast? A step of Llama 3 70B on 64 H100."""

from matplotlib import pyplot as plt

import simdev
from simdev.report.whatif import what_ifs

scenario = simdev.load_scenario("llama3-70b-64x-h100")
answers = what_ifs(simdev.run(scenario), None, scenario)
chosen = [one for one in answers if one.kind in ("resource", "phase")][:10]
figure, ax = plt.subplots(figsize=(9, 5))
bars = ax.barh([one.name for one in chosen], [100 * one.gain for one in chosen])
ax.bar_label(bars, fmt="%.1f %%", padding=4)
ax.invert_yaxis()
ax.set(xlabel="step time saved (%)", title="Llama 3 70B on 64 H100: what if twice as fast")
figure.savefig("tornado.png")
