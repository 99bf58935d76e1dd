// The best so far of searches: a step line a method with a band between its quartiles, what stands beside as dashes.

const CURVES = 400;

class Curves {
  constructor({ curves, beside }) {
    this.beside = beside;
    this.curves = curves;
    this.hidden = new Set();
    this.methods = curves.evaluations.map((curve) => curve.method);
    this.axis = element("select", { ariaLabel: "what the curves go over", onchange: () => this.redraw() },
      element("option", { value: "evaluations" }, "evaluations"), element("option", { value: "cpu_seconds" }, "CPU seconds"));
    this.canvas = element("canvas", { ariaLabel: "the best so far of each method; the tables below hold its numbers", role: "img" });
    this.frame = element("div", { className: "frame" }, this.canvas);
    const legend = element("div", { className: "legend" }, ...this.methods.map((method, k) =>
      toggle(method, SERIES[k % SERIES.length], (on) => {
        if (on) this.hidden.delete(method);
        else this.hidden.add(method);
        this.redraw();
      })));
    this.part = section("The best so far", element("p", { className: "note" }, "Lines are medians over the seeds, bands reach from quartile to quartile. A better strategy is lower."),
      element("div", { className: "bar" }, element("label", {}, "over ", this.axis)), legend, this.frame);
    this.redraw = drawing(this.frame, () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
  }

  shown() {
    return this.curves[this.axis.value].filter((curve) => !this.hidden.has(curve.method));
  }

  // Steps far above what stands beside, as random placements are at first, would press all others together.
  range(curves) {
    const beside = this.beside.map(([, seconds]) => seconds);
    const values = curves.flatMap((curve) => [...curve.lower_s, ...curve.upper_s]).filter((value) => value !== null);
    const ends = curves.map((curve) => curve.median_s.at(-1)).filter((value) => value !== null);
    const low = Math.min(...values, ...beside);
    const most = beside.length ? Math.max(1.25 * Math.max(...beside), ...ends) : Infinity;
    const high = Math.min(Math.max(...values, ...beside), most);
    const margin = (high - low || high || 1) * 0.06;
    return [Math.max(low - margin, 0), high + margin];
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!width) return;
    const context = sized(this.canvas, width, CURVES);
    const curves = this.shown();
    if (!curves.length) return;
    const area = { left: width < 640 ? 70 : 90, right: width - 16, top: 14, bottom: CURVES - 42 };
    const [low, high] = this.range(curves);
    const places = curves.flatMap((curve) => [curve.at[0], curve.at.at(-1)]).filter((at) => at > 0);
    const [from, to] = [Math.min(...places), Math.max(...places) * 1.02];
    const x = (at) => area.left + (Math.log(Math.max(at, from) / from) / (Math.log(to / from) || 1)) * (area.right - area.left);
    const y = (seconds) => area.bottom - ((seconds - low) / (high - low)) * (area.bottom - area.top);
    this.place = { x, y, area };
    this.axes(context, from, to, low, high);
    context.save();
    context.beginPath();
    context.rect(area.left - 5, area.top - 8, area.right - area.left + 10, area.bottom - area.top + 8);
    context.clip();
    for (const curve of curves) this.line(context, curve, paint(SERIES[this.methods.indexOf(curve.method) % SERIES.length]));
    context.restore();
    this.drawBeside(context);
  }

  axes(context, from, to, low, high) {
    const { x, y, area } = this.place;
    const marks = decades(from, to);
    const stride = Math.max(1, Math.ceil((marks.length * 56) / (area.right - area.left)));
    context.textAlign = "center";
    marks.forEach((at, k) => {
      context.fillStyle = theme.grid;
      context.fillRect(x(at), area.top, 1, area.bottom - area.top);
      context.fillStyle = theme.grey;
      if (k % stride === 0) context.fillText(FORMATS.number(Number(at.toPrecision(6))), x(at), area.bottom + 13);
    });
    context.textAlign = "right";
    const { step, values } = ticks(low * 1e12, high * 1e12, 6);
    for (const ps of values) {
      context.fillStyle = theme.grid;
      context.fillRect(area.left, y(ps / 1e12), area.right - area.left, 1);
      context.fillStyle = theme.grey;
      context.fillText(tickText(ps, step, high * 1e12), area.left - 6, y(ps / 1e12));
    }
    context.textAlign = "center";
    context.fillStyle = theme.text;
    context.fillText(this.axis.selectedOptions[0].textContent, (area.left + area.right) / 2, CURVES - 10);
    context.textAlign = "left";
  }

  line(context, { at, lower_s, median_s, upper_s }, colour) {
    const { x, y } = this.place;
    const first = median_s.findIndex((value) => value !== null);
    if (first < 0) return;
    const steps = (values, back) => {
      const order = at.map((_, k) => k).filter((k) => k >= first && values[k] !== null);
      if (back) order.reverse();
      order.forEach((k, n) => {
        if (n && back) context.lineTo(x(at[order[n - 1]]), y(values[k]));
        else if (n) context.lineTo(x(at[k]), y(values[order[n - 1]]));
        context.lineTo(x(at[k]), y(values[k]));
      });
    };
    [context.fillStyle, context.strokeStyle, context.lineWidth, context.globalAlpha] = [colour, colour, 1.8, 0.18];
    context.beginPath();
    steps(lower_s, false);
    steps(upper_s, true);
    context.fill();
    context.globalAlpha = 1;
    context.beginPath();
    steps(median_s, false);
    context.stroke();
    circle(context, { x: x(at.at(-1)), y: y(median_s.at(-1) ?? median_s[first]) }, 3.5);
    context.fill();
  }

  drawBeside(context) {
    const { y, area } = this.place;
    let last = -Infinity;
    for (const [name, seconds] of [...this.beside].sort((a, b) => b[1] - a[1])) {
      const at = y(seconds);
      if (at < area.top - 8) continue;
      context.setLineDash(name === "one device" ? [2, 3] : [7, 4]);
      context.strokeStyle = theme.text;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(area.left, at);
      context.lineTo(area.right, at);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = theme.text;
      context.textAlign = "right";
      // Two that lie on top of each other are named above and below.
      const down = at - last < 14 ? 9 : -8;
      context.fillText(`${name} ${FORMATS.time(seconds * 1e12)}`, area.right - 4, at + down);
      last = at + down;
    }
    context.textAlign = "left";
  }

  hover(event) {
    if (!this.place) return;
    const box = this.canvas.getBoundingClientRect();
    const px = event.clientX - box.left;
    const lines = this.shown().map((curve) => {
      const k = first(curve.at.length, (j) => this.place.x(curve.at[j]) > px) - 1;
      return k < 0 || curve.median_s[k] === null ? null : [curve.median_s[k], `${curve.method}: ${FORMATS.time(curve.median_s[k] * 1e12)}`];
    }).filter(Boolean).sort((a, b) => a[0] - b[0]);
    if (lines.length && px > this.place.area.left) tip.show(event, lines.map((line) => line[1]).join("\n"));
    else tip.hide();
  }
}

class SearchPage {
  constructor(data) {
    this.head = new Head();
    this.head.take(data);
    const sheets = new Sheets();
    sheets.take(data.sheets);
    this.part = element("div", {}, this.head.part);
    if (data.curves.evaluations.length) this.part.append(new Curves(data).part);
    this.part.append(sheets.part);
  }
}
