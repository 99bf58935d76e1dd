// Memory over time and how busy everything is, on the time axis of the Gantt chart.

const LINES = 16; // devices drawn, those with the highest peaks
const CHART = 220;
const CELL = 15;

class Chart {
  constructor(view, title, note, height) {
    this.view = view;
    this.height = height;
    this.canvas = element("canvas", { ariaLabel: title, role: "img" });
    this.legend = element("div", { className: "legend" });
    this.frame = element("div", { className: "frame" }, this.canvas);
    this.part = element("section", {}, element("h2", {}, title), element("p", { className: "note" }, note), this.legend, this.frame);
    this.redraw = perFrame(() => this.draw());
    view.watch(this.redraw);
    new ResizeObserver(this.redraw).observe(this.frame);
    steer(this.canvas, view, { idle: (event) => this.hover(event), click: () => {}, leave: () => {} });
  }

  // An empty picture with the lines of its axis.
  begin() {
    this.width = this.frame.clientWidth;
    const context = sized(this.canvas, this.width, this.height);
    this.ratio = this.canvas.width / this.width || 1;
    this.raster ||= new Raster(this.canvas);
    this.raster.begin(Math.round(AXIS * this.ratio), tickMarks(this.view, (ps) => this.x(ps), this.width, this.ratio));
    return context;
  }

  end(context) {
    this.raster.put(context);
    drawAxis(context, this.view, (ps) => this.x(ps), this.width);
  }

  x(ps) {
    return GUTTER + ((ps - this.view.from) / (this.view.to - this.view.from)) * (this.width - GUTTER);
  }

  time(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.view.from + ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * (this.view.to - this.view.from);
  }
}

class Memory extends Chart {
  constructor(told, view, title = "Memory over time") {
    super(view, title, "Dashed: capacities. Frees at an instant come before allocations.", CHART);
    this.all = told.memory.filter((one) => one.peak).sort((a, b) => b.peak - a.peak);
    this.lines = this.all.slice(0, LINES);
    this.on = this.lines.map(() => true);
    this.lines.forEach((one, i) => {
      const square = element("i");
      square.style.background = SERIES[i % SERIES.length];
      const over = one.capacity !== null && one.peak > one.capacity;
      const label = element("span", { title: "show or hide" }, square, `${one.name} ${FORMATS.bytes(one.peak)}${over ? " (over)" : ""}`);
      label.style.cursor = "pointer";
      label.onclick = () => {
        this.on[i] = !this.on[i];
        label.style.opacity = this.on[i] ? 1 : 0.35;
        this.redraw();
      };
      this.legend.append(label);
    });
    if (this.all.length > LINES) this.legend.append(`and ${this.all.length - LINES} more with lower peaks`);
  }

  draw() {
    const context = this.begin();
    const lines = this.lines.filter((_, i) => this.on[i]);
    const peak = Math.max(1, ...lines.map((one) => one.peak));
    const caps = [...new Set(lines.map((one) => one.capacity).filter((one) => one !== null && one <= 2.5 * peak))];
    const top = Math.max(peak, ...caps) * 1.06;
    const y = (size) => this.height - 6 - (size / top) * (this.height - AXIS - 12);
    const marks = this.marks(top, y);
    this.lines.forEach((one, i) => { if (this.on[i]) this.line(one, Raster.colour(SERIES[i % SERIES.length]), y); });
    this.end(context);
    context.fillStyle = GREY;
    context.textAlign = "right";
    for (const [text, at] of marks) context.fillText(text, GUTTER - 8, at);
    context.textAlign = "left";
    context.setLineDash([6, 4]);
    context.strokeStyle = "#444";
    for (const cap of caps) {
      context.beginPath();
      context.moveTo(GUTTER, y(cap));
      context.lineTo(this.width, y(cap));
      context.stroke();
    }
    context.setLineDash([]);
  }

  // Lines across at round sizes; their texts and places.
  marks(top, y) {
    const [unit, scale] = SIZES.find(([, one]) => top >= one) || ["B", 1];
    const across = this.raster.blank.slice().fill(Raster.colour("#e8eaee"), Math.round(GUTTER * this.ratio));
    return ticks(0, top / scale, 4).found.map((value) => {
      const at = Math.round(y(value * scale) * this.ratio);
      this.raster.lines(across, at, at + 1);
      return [`${digits(value)} ${unit}`, y(value * scale)];
    });
  }

  // A step line: in every column of pixels from the highest to the lowest level of that moment.
  line({ time, level }, colour, y) {
    const { from, to } = this.view;
    const [gutter, width] = [Math.round(GUTTER * this.ratio), this.canvas.width];
    const perPixel = (to - from) / (width - gutter);
    const thick = Math.max(Math.round(1.5 * this.ratio), 1);
    let i = first(time.length, (j) => time[j] > from, 0);
    let now = i ? level[i - 1] : 0;
    for (let x = gutter; x < width; x++) {
      const end = from + (x + 1 - gutter) * perPixel;
      let [low, high] = [now, now];
      for (; i < time.length && time[i] < end; i++) {
        now = level[i];
        if (now < low) low = now;
        if (now > high) high = now;
      }
      const [upper, lower] = [Math.round(y(high) * this.ratio), Math.round(y(low) * this.ratio)];
      this.raster.column(x, upper, lower + thick, colour);
    }
  }

  hover(event) {
    const ps = this.time(event);
    if (ps < this.view.from) return tip.hide();
    const told = this.lines.filter((_, i) => this.on[i]).map((one) => {
      const k = first(one.time.length, (j) => one.time[j] > ps, 0) - 1;
      return `${one.name}: ${FORMATS.bytes(k < 0 ? 0 : one.level[k])}`;
    });
    tip.show(event, [`at ${FORMATS.time(ps)}`, ...told].join("\n"));
  }
}

// A row a device, queue or link; the darker, the busier.
class Load extends Chart {
  constructor(told, view, title = "Utilization and link load") {
    super(view, title, "How much of each moment a device computes or a queue or link carries: white nothing, dark all of it.",
      AXIS + told.load.length * CELL + 6);
    this.rows = told.load;
    if (this.height > TALLEST) {
      this.frame.style.overflowY = "auto";
      this.frame.style.maxHeight = `${TALLEST}px`;
    }
    this.bin = told.step / (this.rows.length ? this.rows[0].percent.length : 1);
  }

  draw() {
    const context = this.begin();
    const place = (ps) => Math.round(clamp(this.x(ps), GUTTER, this.width) * this.ratio);
    const from = Math.max(Math.floor(this.view.from / this.bin), 0);
    this.rows.forEach((row, r) => {
      const strip = this.raster.blank.slice();
      for (let b = from; b < row.percent.length && b * this.bin < this.view.to; b++) {
        if (row.percent[b]) strip.fill(SHADES[row.percent[b]], place(b * this.bin), place((b + 1) * this.bin));
      }
      const y = AXIS + r * CELL;
      this.raster.lines(strip, Math.round((y + 1) * this.ratio), Math.round((y + CELL - 1) * this.ratio));
    });
    this.end(context);
    context.fillStyle = "#1c2128";
    this.rows.forEach((row, r) => context.fillText(fitting(context, row.name, GUTTER - 16), 8, AXIS + (r + 0.5) * CELL));
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - box.top - AXIS) / CELL)];
    const b = Math.floor(this.time(event) / this.bin);
    if (!row || b < 0 || b >= row.percent.length || event.clientX - box.left < GUTTER) return tip.hide();
    tip.show(event, `${row.name}\n${row.percent[b]}% busy from ${FORMATS.time(b * this.bin)} to ${FORMATS.time((b + 1) * this.bin)}`);
  }
}

// From light to dark, by per cent.
const SHADES = Array.from({ length: 101 }, (_, percent) => Raster.colour("#044680", 0.1 + (0.9 * percent) / 100));

function shade(percent) {
  const pixel = SHADES[Math.round(percent)];
  return `rgb(${pixel & 255},${(pixel >> 8) & 255},${(pixel >> 16) & 255})`;
}

function blameBar(blame, step) {
  const colours = { compute: "#0072B2", transfer: "#E69F00", queueing: "#9aa0a8", launch: "#4D4D4D", latency: "#D9C400" };
  const stack = element("div", { className: "stack" });
  const legend = element("div", { className: "legend" });
  for (const [name, ps] of blame) {
    if (!ps) continue;
    const part = element("div", { title: `${name} ${FORMATS.time(ps)}` });
    part.style.width = `${(100 * ps) / step}%`;
    part.style.background = colours[name] || GREY;
    stack.append(part);
    const square = element("i");
    square.style.background = colours[name] || GREY;
    legend.append(element("span", {}, square, `${name} ${FORMATS.share(ps / step)}`));
  }
  return element("div", {}, stack, legend);
}
