// The share of a long run that counts, over the interval between checkpoints: the mean of the simulated runs with a band of
// nine in ten, dashes by formula, and the best interval.

const GOODPUT = 300;

class Goodput {
  constructor() {
    this.canvas = element("canvas", { ariaLabel: "goodput over the interval between checkpoints", role: "img" });
    this.frame = element("div", { className: "frame" }, this.canvas);
    this.part = section("Goodput over the interval between checkpoints",
      element("p", { className: "note" }, "Line and band: the mean of simulated runs, and nine in ten of them. Dashed: expected by formula."), this.frame);
    this.redraw = drawing(this.frame, () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
  }

  take(data) {
    this.data = data;
    this.part.hidden = !data;
    this.redraw();
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!width || !this.data) return;
    const { at, mean, low, high, expected, marks } = this.data;
    const context = sized(this.canvas, width, GOODPUT);
    const area = { left: 60, right: width - 16, top: 22, bottom: GOODPUT - 40 };
    const [least, most] = [Math.min(...low), Math.max(...high)];
    const margin = (most - least || most || 1) * 0.08;
    const [floor, top] = [Math.max(least - margin, 0), Math.min(most + margin, 1)];
    const reach = Math.log(at.at(-1) / at[0]) || 1;
    this.x = (seconds) => area.left + (Math.log(seconds / at[0]) / reach) * (area.right - area.left);
    this.y = (share) => area.bottom - ((share - floor) / (top - floor || 1)) * (area.bottom - area.top);
    this.axes(context, area, floor, top);
    const path = (values) => values.forEach((value, k) => context.lineTo(this.x(at[k]), this.y(value)));
    const colour = paint(SERIES[0]);
    [context.fillStyle, context.strokeStyle, context.lineWidth, context.globalAlpha] = [colour, colour, 1.8, 0.2];
    context.beginPath();
    path(high);
    at.map((_, k) => k).reverse().forEach((k) => context.lineTo(this.x(at[k]), this.y(low[k])));
    context.fill();
    context.globalAlpha = 1;
    context.beginPath();
    path(mean);
    context.stroke();
    if (!expected.includes(null)) {
      context.setLineDash([6, 4]);
      [context.strokeStyle, context.lineWidth] = [theme.text, 1];
      context.beginPath();
      path(expected);
      context.stroke();
      context.setLineDash([]);
    }
    for (const [name, seconds, share, text] of marks) {
      context.fillStyle = paint(name === "best" ? ALARM : SERIES[0]);
      circle(context, { x: this.x(seconds), y: this.y(share) }, 4.5);
      context.fill();
      context.fillStyle = theme.text;
      context.textAlign = "center";
      context.fillText(`${name}: ${text}, ${FORMATS.share(share)}`, clamp(this.x(seconds), area.left + 90, area.right - 90), this.y(share) + (name === "best" ? -14 : 16));
    }
    context.textAlign = "left";
  }

  axes(context, area, floor, top) {
    context.textAlign = "center";
    for (const [seconds, text] of this.data.ticks) {
      context.fillStyle = theme.grid;
      context.fillRect(this.x(seconds), area.top, 1, area.bottom - area.top);
      context.fillStyle = theme.grey;
      context.fillText(text, this.x(seconds), area.bottom + 13);
    }
    context.fillStyle = theme.text;
    context.fillText("training between two checkpoints", (area.left + area.right) / 2, GOODPUT - 9);
    context.textAlign = "right";
    for (const share of ticks(floor * 1e6, top * 1e6, 5).values.map((value) => value / 1e6)) {
      context.fillStyle = theme.grid;
      context.fillRect(area.left, this.y(share), area.right - area.left, 1);
      context.fillStyle = theme.grey;
      context.fillText(FORMATS.share(share), area.left - 6, this.y(share));
    }
  }

  hover(event) {
    if (!this.x) return;
    const px = event.clientX - this.canvas.getBoundingClientRect().left;
    const { at, mean, low, high } = this.data;
    const k = at.reduce((best, seconds, j) => (Math.abs(this.x(seconds) - px) < Math.abs(this.x(at[best]) - px) ? j : best), 0);
    tip.show(event, `${FORMATS.time(at[k] * 1e12)} of training: ${FORMATS.share(mean[k])} (${FORMATS.share(low[k])} to ${FORMATS.share(high[k])})`);
  }
}
