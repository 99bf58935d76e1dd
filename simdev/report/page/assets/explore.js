// The page of a step with sliders. It asks whoever holds the scenario: the server that it came from, or the notebook
// around its frame. One question is under way at a time; of what the reader wants meanwhile the last counts.

const REST = 250; // ms without a change after which the tables are asked for too

// Questions by HTTP, with the token of the address.
function askServer(method, params) {
  return fetch(location.origin, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${location.hash.slice(1)}` },
    body: JSON.stringify({ method, params }),
  }).then((reply) => reply.json());
}

// Questions to the page around this frame, which answers each by its number.
function askAround() {
  const waiting = new Map();
  addEventListener("message", (event) => {
    if (event.source !== parent || !waiting.has(event.data.id)) return;
    waiting.get(event.data.id)(event.data);
    waiting.delete(event.data.id);
  });
  let count = 0;
  return (method, params) => new Promise((answered) => {
    count += 1;
    waiting.set(count, answered);
    parent.postMessage({ id: count, method, params }, "*");
  });
}

// A slider: factors on a scale of powers of two, numbers of microbatches as they are.
class Slider {
  constructor(knob, changed) {
    this.knob = knob;
    this.input = element("input", { type: "range", ariaLabel: knob.label });
    const [least, most] = knob.factor ? [Math.log2(knob.least), Math.log2(knob.most)] : [knob.least, knob.most];
    Object.assign(this.input, { min: least, max: most, step: knob.factor ? 1 / 16 : 1 });
    this.shown = element("output");
    this.back = button("reset", `${knob.label} as in the scenario`, () => {
      this.set(knob.value);
      changed();
    });
    this.input.oninput = () => {
      this.tell();
      changed();
    };
    this.part = element("div", { className: "slider" }, element("span", {}, knob.label), this.input, this.shown, this.back);
    this.set(knob.value);
  }

  get value() {
    const number = Number(this.input.value);
    return this.knob.factor ? 2 ** number : number;
  }

  set(value) {
    this.input.value = this.knob.factor ? Math.log2(value) : value;
    this.tell();
  }

  tell() {
    const text = this.knob.factor ? `× ${digits(this.value, 3)}` : String(this.value);
    this.shown.textContent = text;
    this.input.ariaValueText = text;
    this.back.disabled = this.value === this.knob.value;
  }
}

class ExplorePage {
  constructor(data) {
    this.ask = data.around ? askAround() : askServer;
    this.sliders = [];
    this.panel = element("div", { className: "sliders" });
    this.state = element("p", { className: "hint", role: "status" }, "simulating…");
    this.part = element("div", {}, section("What if?", this.panel, this.state));
    this.begin();
  }

  async begin() {
    const { result, error } = await this.ask("knobs", {}).catch(unreachable);
    if (error) return this.tell(error.message, true);
    this.sliders = result.map((knob) => new Slider(knob, () => this.changed()));
    this.panel.replaceChildren(...this.sliders.map((slider) => slider.part));
    this.changed();
  }

  changed() {
    this.wanted = true;
    clearTimeout(this.rest);
    this.next(false);
  }

  // Asks for what the sliders say now, unless an answer is still to come; tables once they rest.
  async next(tables) {
    if (this.busy) return;
    this.busy = true;
    this.wanted = false;
    const settings = Object.fromEntries(this.sliders.map((slider) => [slider.knob.name, slider.value]));
    const begun = performance.now();
    const { shape } = this.timeline || {};
    const { result, error } = await this.ask("ask", { settings, tables, shape }).catch(unreachable);
    this.busy = false;
    if (error) this.tell(error.message, true);
    else this.show(this.whole(result), performance.now() - begun, tables);
    if (this.wanted) this.next(false);
    else if (!tables && !error) this.rest = setTimeout(() => this.next(true), REST);
  }

  // An answer leaves out what hangs on no times where it is as in the one before.
  whole(data) {
    const { timeline } = data;
    if (!timeline.tasks.name) {
      timeline.tasks = { ...this.timeline.tasks, ...timeline.tasks };
      timeline.before = this.timeline.before;
    }
    this.timeline = timeline;
    return data;
  }

  show(data, ms, tables) {
    if (!this.page) {
      this.page = new StepPage({ ...data, sheets: data.sheets || [] });
      this.base = data.timeline.step;
      this.part.append(this.page.part);
    } else this.page.take(data);
    const gain = this.base ? data.timeline.step / this.base - 1 : 0;
    const change = gain ? `${FORMATS.change(gain)} of the scenario's ${FORMATS.time(this.base)}; ` : "";
    this.tell(`${change}answered in ${Math.round(ms)} ms${tables ? "" : ", tables follow"}`, false);
  }

  tell(text, bad) {
    this.state.textContent = text;
    this.state.classList.toggle("warning", bad);
  }
}

function unreachable() {
  return { error: { message: "no answer: simdev explore has ended, or this address is not the one that it printed" } };
}

PAGES.explore = ExplorePage;
