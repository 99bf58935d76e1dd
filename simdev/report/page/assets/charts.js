// Memory over time and how busy everything is, on the time axis of the Gantt chart.

const PANEL = 50; // of the memory of a device
const CELL = 15; // of the load of a device, queue or link

class Chart {
  constructor(view, title, note) {
    this.view = view;
    this.canvas = element("canvas", { ariaLabel: `${title}. ${KEYS}`, role: "application" });
    this.inner = element("div", {}, this.canvas);
    this.box = element("div", { className: "rows" }, this.inner);
    this.part = section(title, element("p", { className: "note" }, note), element("div", { className: "frame" }, this.box));
    this.redraw = drawing(this.box, () => { if (this.data && this.box.clientWidth) this.draw(); });
    view.watch(this.redraw);
    this.box.addEventListener("scroll", this.redraw);
    steer(this.canvas, view, { idle: (event) => this.hover(event) });
  }

  // A picture of so many pixels, of which as many are on the canvas as a window has room for.
  size(height) {
    this.visible = Math.min(height, TALLEST);
    this.inner.style.height = `${height}px`;
    this.box.style.height = `${this.visible}px`;
  }

  // An empty picture with the lines of its axis.
  begin() {
    const width = this.box.clientWidth;
    const context = sized(this.canvas, width, this.visible);
    this.axis = new Axis(this.view, width);
    this.ratio = this.canvas.width / width;
    this.raster ||= new Raster(this.canvas);
    this.raster.begin(Math.round(AXIS * this.ratio), this.axis.marks(this.ratio));
    return context;
  }

  end(context) {
    this.raster.put(context);
    this.axis.draw(context);
  }

  // The time at the pointer and how far down it is.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [this.axis.time(event.clientX - box.left), event.clientY - box.top];
  }
}

// A panel a device, all on one scale; of many devices the fullest and the range of all.
class Memory extends Chart {
  constructor(view, title = "Memory over time") {
    super(view, title, "All panels have one scale. Dashed: capacities. Frees at an instant come before allocations.");
  }

  take({ memory }) {
    this.data = memory;
    this.panels = [...memory.panels];
    if (memory.range) this.panels.push(memory.range);
    this.part.hidden = !this.panels.length;
    this.size(AXIS + this.panels.length * PANEL + 6);
    this.redraw();
  }

  draw() {
    const context = this.begin();
    const peak = Math.max(1, ...this.panels.map((panel) => panel.peak));
    // A capacity far above all that is held would press the levels flat.
    const caps = this.panels.map((panel) => (panel.capacity !== null && panel.capacity <= 2.5 * peak ? panel.capacity : null));
    const scale = (PANEL - 10) / (Math.max(peak, ...caps) * 1.04);
    const floor = (k) => AXIS + (k + 1) * PANEL - 2;
    this.panels.forEach((panel, k) => this.area(panel, (size) => floor(k) - size * scale, floor(k)));
    this.end(context);
    this.panels.forEach((panel, k) => {
      this.label(context, panel, AXIS + k * PANEL);
      context.fillStyle = theme.line;
      context.fillRect(0, floor(k), this.axis.width, 1);
      if (caps[k] === null) return;
      context.setLineDash([6, 4]);
      context.strokeStyle = theme.grey;
      context.beginPath();
      context.moveTo(this.axis.left, floor(k) - caps[k] * scale);
      context.lineTo(this.axis.width, floor(k) - caps[k] * scale);
      context.stroke();
      context.setLineDash([]);
    });
  }

  label(context, { name, peak, capacity }, y) {
    const room = this.axis.left - 16;
    const [is, over] = [FORMATS.bytes(peak), capacity !== null && peak > capacity];
    context.font = `600 12px ${FONT}`;
    context.fillStyle = theme.text;
    context.fillText(fitting(context, name, room), 8, y + 17);
    context.font = `11px ${FONT}`;
    context.fillStyle = over ? paint(ALARM) : theme.grey;
    const texts = capacity === null ? [`peak ${is}`, is] : [`peak ${is} of ${FORMATS.bytes(capacity)}`, `${is} of ${FORMATS.bytes(capacity)}`, `peak ${is}`, is];
    context.fillText(texts.find((text) => widthOf(context, text) <= room) || "", 8, y + 34);
  }

  // In every column of pixels filled up to the highest level of that moment, darker between lowest and highest; red
  // above the capacity.
  area({ time, level, lowest, capacity }, y, floor) {
    const { from } = this.view;
    const [left, width] = [Math.round(this.axis.left * this.ratio), this.canvas.width];
    const perPixel = 1 / (this.axis.scale * this.ratio);
    const [light, strong, red] = [Raster.colour(paint(SERIES[0]), 0.35), Raster.colour(paint(SERIES[0])), Raster.colour(paint(ALARM))];
    const place = (size) => Math.round(y(size) * this.ratio);
    const thick = Math.max(Math.round(1.3 * this.ratio), 1);
    let i = over(time, from, 0);
    let [now, least] = i ? [level[i - 1], lowest ? lowest[i - 1] : 0] : [0, 0];
    for (let x = left; x < width; x++) {
      const end = from + (x + 1 - left) * perPixel;
      let [low, high] = [now, now];
      for (; i < time.length && time[i] < end; i++) {
        now = level[i];
        least = lowest ? lowest[i] : 0;
        if (now < low) low = now;
        if (now > high) high = now;
      }
      this.raster.column(x, place(high), place(lowest ? least : 0), light);
      this.raster.column(x, place(high), place(lowest ? high : low) + thick, strong);
      if (capacity !== null && high > capacity) this.raster.column(x, place(high), place(capacity), red);
    }
  }

  hover(event) {
    const [ps] = this.at(event);
    if (ps < this.view.from) return tip.hide();
    const texts = this.panels.map((panel) => {
      const k = over(panel.time, ps, 0) - 1;
      const [low, high] = [k < 0 || !panel.lowest ? null : panel.lowest[k], k < 0 ? 0 : panel.level[k]];
      return `${panel.name}: ${low === null ? "" : `${FORMATS.bytes(low)} to `}${FORMATS.bytes(high)}`;
    });
    tip.show(event, [`at ${FORMATS.time(ps)}`, ...texts].join("\n"));
  }
}

// A row a device, queue or link; the stronger its colour, the busier.
class Load extends Chart {
  constructor(view, title = "Utilization and link load") {
    super(view, title, "How much of each moment a device computes or a queue or link carries; the full colour is all of it.");
  }

  take(timeline) {
    this.data = timeline;
    const { load, step } = timeline;
    this.bin = step / (load.length ? load[0].percent.length : 1);
    // A bin is a span that is as busy as it says.
    this.rows = load.map(({ name, percent }) => ({
      name, percent, kind: percent.map(() => 0), busy: percent.map((part) => (part / 100) * this.bin),
      start: percent.map((_, b) => b * this.bin), end: percent.map((_, b) => (b + 1) * this.bin),
    }));
    this.part.hidden = !this.rows.length;
    this.size(AXIS + this.rows.length * CELL + 6);
    this.redraw();
  }

  draw() {
    const context = this.begin();
    const top = this.box.scrollTop;
    const tones = [channels(shades().at(-1))];
    const sight = this.rows.map((row, r) => ({ row, y: AXIS + r * CELL - top })).filter(({ y }) => y > AXIS - CELL && y < this.visible);
    for (const { row, y } of sight) {
      const strip = this.raster.cleared();
      paintCover(strip, row, this.axis, this.ratio, tones);
      this.raster.lines(strip, Math.round(Math.max(y + 1, AXIS) * this.ratio), Math.round((y + CELL - 1) * this.ratio));
    }
    this.end(context);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.axis.width, this.visible - AXIS);
    context.clip();
    context.fillStyle = theme.text;
    for (const { row, y } of sight) context.fillText(fitting(context, row.name, this.axis.left - 16), 8, y + CELL / 2);
    context.restore();
  }

  hover(event) {
    const [ps, down] = this.at(event);
    const row = this.rows[Math.floor((down + this.box.scrollTop - AXIS) / CELL)];
    const b = Math.floor(ps / this.bin);
    if (!row || b < 0 || b >= row.percent.length || ps < this.view.from) return tip.hide();
    tip.show(event, `${row.name}\n${row.percent[b]}% busy from ${FORMATS.time(b * this.bin)} to ${FORMATS.time((b + 1) * this.bin)}`);
  }
}

// What the step time is spent on, as a bar.
function blameBar(blame, step) {
  const stack = element("div", { className: "stack", ariaHidden: "true" });
  const legend = element("div", { className: "legend" });
  for (const [name, ps] of blame) {
    if (!ps) continue;
    const part = element("div", { title: `${name} ${FORMATS.time(ps)}` });
    part.style.width = `${(100 * ps) / step}%`;
    fill(part, COLOURS[name]);
    stack.append(part);
    legend.append(element("span", {}, swatch(COLOURS[name]), `${name} ${FORMATS.share(ps / step)}`));
  }
  return [stack, legend];
}
