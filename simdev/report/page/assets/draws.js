// A histogram of draws: the middle 80 % darker, the answer without errors as a line.

const DRAWS = 170;

class Histogram {
  constructor(title) {
    this.canvas = element("canvas", { role: "img" });
    this.note = element("p", { className: "note" });
    this.frame = element("div", { className: "frame" }, this.canvas);
    this.part = section(title, this.note, this.frame);
    this.redraw = drawing(this.frame, () => this.draw());
    this.take(null);
  }

  take(draws) {
    this.draws = draws;
    this.part.hidden = !draws;
    if (!draws) return;
    const [low, middle, high] = draws.percentiles.map(FORMATS.time);
    this.note.textContent = `${draws.count.toLocaleString("en-US")} draws (seed ${draws.seed}): p10 ${low}, p50 ${middle}, p90 ${high}; the answer is ${FORMATS.time(draws.answer)}.`;
    this.canvas.ariaLabel = `Histogram. ${this.note.textContent}`;
    this.redraw();
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!width || !this.draws) return;
    const { counts, from, to, answer, percentiles: [low, , high] } = this.draws;
    const context = sized(this.canvas, width, DRAWS);
    const area = { left: 16, right: width - 16, top: 24, bottom: DRAWS - 26 };
    const x = (ps) => area.left + ((ps - from) / (to - from || 1)) * (area.right - area.left);
    const most = Math.max(...counts);
    context.textAlign = "center";
    const { step, values } = ticks(from, to, Math.max(2, Math.floor(width / 130)));
    for (const ps of values) {
      context.fillStyle = theme.grid;
      context.fillRect(x(ps), area.top, 1, area.bottom - area.top);
      context.fillStyle = theme.grey;
      context.fillText(tickText(ps, step, Math.max(Math.abs(from), Math.abs(to))), clamp(x(ps), 30, width - 30), area.bottom + 13);
    }
    counts.forEach((count, k) => {
      const [begin, end] = [k, k + 1].map((n) => from + ((to - from) * n) / counts.length);
      const height = (count / most) * (area.bottom - area.top);
      context.globalAlpha = end > low && begin <= high ? 0.85 : 0.35;
      context.fillStyle = paint(SERIES[0]);
      context.fillRect(x(begin) + 0.5, area.bottom - height, Math.max(x(end) - x(begin) - 1, 1), height);
    });
    context.globalAlpha = 1;
    context.fillStyle = theme.text;
    context.fillRect(x(answer) - 1, area.top - 6, 2, area.bottom - area.top + 6);
    const text = `answer ${FORMATS.time(answer)}`;
    const half = widthOf(context, text) / 2 + 4;
    context.fillText(text, clamp(x(answer), half, width - half), 9);
    context.textAlign = "left";
  }
}
