// The page of one step. It is drawn from data, and drawn again from others: whoever simulates anew as the reader moves a
// slider calls `take` with each answer.

// What stands above everything, of any page.
class Head {
  constructor() {
    this.facts = element("dl", { className: "facts" });
    this.notes = element("div");
    this.part = element("div", {}, this.facts, this.notes);
  }

  take(data) {
    document.title = `${data.title} - simdev`;
    document.querySelector("h1").textContent = data.title;
    const headline = document.getElementById("headline");
    headline.textContent = data.source ? `${data.headline} (${data.source})` : data.headline;
    headline.classList.toggle("bad", !data.fits);
    this.facts.hidden = !data.facts.length;
    this.facts.replaceChildren(...data.facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    this.notes.replaceChildren(...data.notes.map((note) => element("p", { className: data.fits ? "note" : "note warning" }, note)));
  }
}

// new StepPage(data): `part` is to be put on the page, `take(data)` shows another step.
class StepPage {
  constructor(data) {
    this.view = new View(data.timeline.step);
    this.head = new Head();
    this.blame = section("Critical path");
    this.heading = this.blame.firstChild;
    this.charts = [new Gantt(this.view, "Gantt chart"), new Memory(this.view), new Load(this.view)];
    this.draws = new Histogram("How sure: the step time over draws");
    this.goodput = new Goodput();
    this.sheets = new Sheets();
    const parts = [...this.charts, this.goodput, this.sheets].map((chart) => chart.part);
    this.part = element("div", {}, this.head.part, this.draws.part, this.blame, ...parts);
    this.take(data);
  }

  take(data) {
    this.head.take(data);
    this.draws.take(data.draws);
    this.blame.replaceChildren(this.heading, ...blameBar(data.blame, data.timeline.step || 1));
    this.view.take(data.timeline.step);
    for (const chart of this.charts) chart.take(data.timeline);
    this.goodput.take(data.goodput);
    // Tables are left out while a reader moves a slider: those before stay until it rests.
    if (data.sheets) this.sheets.take(data.sheets);
  }
}

// Two steps on one time axis.
class ComparePage {
  constructor(data) {
    const view = new View(Math.max(...data.timelines.map((timeline) => timeline.step)));
    this.head = new Head();
    this.head.take(data);
    const draws = new Histogram("How sure: B minus A over draws");
    draws.take(data.draws);
    const [first, rest] = [new Sheets(), new Sheets()];
    first.take(data.sheets.slice(0, 2));
    rest.take(data.sheets.slice(2));
    const charts = data.timelines.flatMap((timeline, k) => {
      const letter = "AB"[k];
      const made = [new Gantt(view, `${letter}: ${data.names[k]}. ${data.headlines[k]}`), new Memory(view, `${letter}: memory over time`)];
      for (const chart of made) chart.take(timeline);
      return made;
    });
    this.part = element("div", {}, this.head.part, draws.part, first.part, ...charts.map((chart) => chart.part), rest.part);
  }
}
