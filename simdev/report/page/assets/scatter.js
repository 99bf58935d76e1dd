// Any column of many rows against any other. What does not fit is hollow, the best has a ring, and where the axes are what
// is to be small a line joins the front.

const NO_VALUE = "(none)";

class Scatter {
  constructor({ columns, ranking }, axes) {
    this.columns = columns;
    this.ranking = ranking;
    this.apart = new Set(ranking.apart);
    this.by = Object.fromEntries(columns.map((column) => [column.title, column]));
    this.hidden = new Set();
    this.canvas = element("canvas", { ariaLabel: "scatter plot", role: "img" });
    this.legend = element("div", { className: "legend" });
    this.frame = element("div", { className: "frame" }, this.canvas);
    const drawn = columns.filter((column) => !["key", "simdev", "reason"].includes(column.title)).map((column) => column.title);
    const numbers = drawn.filter((title) => this.by[title].as !== "text");
    this.x = this.choice(drawn, axes.x);
    this.y = this.choice(numbers, axes.y);
    this.colour = this.choice(drawn, axes.colour);
    [this.logX, this.logY] = [0, 1].map(() => element("input", { type: "checkbox", onchange: () => this.changed() }));
    [this.logX.checked, this.logY.checked] = [this.isWide(this.x.value), this.isWide(this.y.value)];
    const label = (text, ...parts) => element("label", {}, `${text} `, ...parts);
    this.part = section("All rows as a picture",
      element("div", { className: "bar" }, label("x", this.x), label("", this.logX, "log"), label("y", this.y), label("", this.logY, "log"),
        label("colour", this.colour)), this.legend, this.frame);
    this.redraw = drawing(this.frame, () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.changed();
  }

  // Whether values reach so far that on an even axis most of them would stand on top of each other.
  isWide(title) {
    const values = ((this.by[title] || {}).values || []).filter((value) => typeof value === "number");
    return values.length > 2 && Math.min(...values) > 0 && Math.max(...values) > 30 * Math.min(...values);
  }

  choice(titles, chosen) {
    const made = element("select", { onchange: () => this.changed() }, ...titles.map((title) => element("option", { value: title }, title)));
    made.value = titles.includes(chosen) ? chosen : titles[0] || "";
    return made;
  }

  changed() {
    const colour = this.by[this.colour.value];
    const values = colour ? colour.values.map((value) => (value === null ? NO_VALUE : shown(value, colour.as))) : [];
    const distinct = [...new Set(values)];
    this.ranked = colour && colour.as !== "text" && distinct.length > SERIES.length;
    this.groups = this.ranked ? [] : distinct;
    this.group = values.map((value) => this.groups.indexOf(value));
    this.hidden.clear();
    this.legend.replaceChildren(...this.groups.slice(0, 40).map((name, g) => this.item(name, g)));
    if (this.apart.size) this.legend.append(element("span", {}, "○ does not fit"));
    if (this.ranked) {
      const numbers = colour.values.filter((value) => value !== null);
      this.range = numbers.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
      this.legend.append(`light ${shown(this.range[0], colour.as)} … dark ${shown(this.range[1], colour.as)}`);
    }
    this.redraw();
  }

  item(name, g) {
    return toggle(name, SERIES[g % SERIES.length], (on) => {
      if (on) this.hidden.delete(g);
      else this.hidden.add(g);
      this.redraw();
    });
  }

  // The values of an axis as numbers: texts by the order in which they first stand. It reaches over what is `beside` them, too.
  scale(title, log, beside = []) {
    const column = this.by[title];
    if (!column) return { values: [], label: () => "", ticks: [], range: [0, 1], log: false };
    const names = column.as === "text" ? [...new Set(column.values.filter((value) => value !== null))] : null;
    const values = column.values.map((value) => (value === null ? NaN : names ? names.indexOf(value) : value));
    const usable = [...values, ...beside].filter((value) => !Number.isNaN(value) && (!log || value > 0));
    let [least, most] = usable.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (!usable.length) [least, most] = [0, 1];
    if (names) [least, most] = [-0.5, names.length - 0.5];
    else if (!log) {
      const margin = (most - least || Math.abs(most) || 1) * 0.06;
      [least, most] = [least >= 0 && least - margin < 0.35 * most ? 0 : least - margin, most + margin];
    } else [least, most] = [least / 1.15, most * 1.15];
    const useLog = log && !names;
    const marks = names ? names.map((_, i) => i) : useLog ? decades(least, most) : roundTicks(least, most, column.as);
    const label = names ? (value) => names[value] : (value) => tickLabel(value, column.as);
    return { values, label, ticks: marks, range: [least, most], log: useLog };
  }

  draw() {
    this.width = this.frame.clientWidth;
    if (!this.width) return;
    this.height = 420;
    const context = sized(this.canvas, this.width, this.height);
    const bounds = (this.by[this.y.value]?.values ?? []).flatMap((_, i) => this.bounds(i) ?? []);
    const [x, y] = [this.scale(this.x.value, this.logX.checked), this.scale(this.y.value, this.logY.checked, bounds)];
    const area = { left: this.width < 640 ? 76 : 96, right: this.width - 20, top: 14, bottom: this.height - 46 };
    const place = (axis, value, from, to) => {
      const [least, most] = axis.log ? axis.range.map(Math.log) : axis.range;
      return from + (((axis.log ? Math.log(value) : value) - least) / (most - least || 1)) * (to - from);
    };
    this.axes(context, x, y, area, place);
    this.points = [];
    const radius = x.values.length > 3000 ? 2.2 : 4;
    for (let i = 0; i < x.values.length; i++) {
      const [a, b] = [x.values[i], y.values[i]];
      const usable = !Number.isNaN(a) && !Number.isNaN(b) && (!x.log || a > 0) && (!y.log || b > 0);
      if (!usable || this.hidden.has(this.group[i])) continue;
      this.points.push({ i, x: place(x, a, area.left, area.right), y: place(y, b, area.bottom, area.top) });
    }
    this.drawFront(context);
    this.drawErrors(context, (value) => place(y, value, area.bottom, area.top));
    // What the front beats stands back.
    const front = new Set(this.ranking.front);
    for (const point of this.points) {
      context.globalAlpha = !front.size || front.has(point.i) || this.apart.has(point.i) ? 0.95 : 0.4;
      circle(context, point, radius);
      [context.fillStyle, context.strokeStyle, context.lineWidth] = [this.pointColour(point.i), this.pointColour(point.i), 1.5];
      if (this.apart.has(point.i)) context.stroke();
      else context.fill();
    }
    context.globalAlpha = 1;
    const best = this.points.find((point) => point.i === this.ranking.order[0]);
    if (best) this.drawBest(context, best, area);
  }

  // From the 10th to the 90th percentile of the draws, where the axis is the step time or follows from it.
  bounds(i) {
    const cell = (title) => this.by[title]?.values[i] ?? null;
    const times = [cell("step_p10_s"), cell("step_p90_s")];
    if (times.includes(null)) return null;
    if (this.y.value === "step_time_s") return times;
    const samples = cell("global_batch");
    return this.y.value === "samples_per_s" && samples !== null ? times.map((ps) => (samples * 1e12) / ps).reverse() : null;
  }

  drawErrors(context, at) {
    context.strokeStyle = theme.grey;
    context.lineWidth = 1.2;
    context.beginPath();
    for (const { i, x } of this.points) {
      const ends = this.bounds(i)?.map(at);
      if (!ends) continue;
      for (const y of ends) {
        context.moveTo(x - 4, y);
        context.lineTo(x + 4, y);
      }
      context.moveTo(x, ends[0]);
      context.lineTo(x, ends[1]);
    }
    context.stroke();
  }

  drawBest(context, best, area) {
    circle(context, best, 8);
    [context.strokeStyle, context.fillStyle, context.lineWidth] = [theme.text, theme.text, 2];
    context.stroke();
    context.textAlign = best.x > (area.left + area.right) / 2 ? "right" : "left";
    context.fillText("best", best.x + (context.textAlign === "right" ? -13 : 13), best.y > area.top + 20 ? best.y - 12 : best.y + 12);
    context.textAlign = "left";
  }

  // Steps, for between two rows of the front there is nothing.
  drawFront(context) {
    const titles = [this.x.value, this.y.value];
    const { goals, upward, front } = this.ranking;
    if (goals.length < 2 || !goals.every((goal) => titles.includes(goal)) || upward.some(Boolean)) return;
    const points = this.points.filter((point) => front.includes(point.i)).sort((a, b) => a.x - b.x);
    context.strokeStyle = theme.grey;
    context.lineWidth = 1.2;
    context.beginPath();
    points.forEach((point, k) => {
      if (k) context.lineTo(point.x, points[k - 1].y);
      context.lineTo(point.x, point.y);
    });
    context.stroke();
  }

  pointColour(i) {
    if (!this.ranked) return paint(SERIES[this.group[i] % SERIES.length]);
    const value = this.by[this.colour.value].values[i];
    if (value === null) return theme.grey;
    return shades()[Math.round(25 + (75 * (value - this.range[0])) / (this.range[1] - this.range[0] || 1))];
  }

  axes(context, x, y, area, place) {
    const stride = Math.max(1, Math.ceil((x.ticks.length * 84) / (area.right - area.left)));
    context.textAlign = "center";
    x.ticks.forEach((value, k) => {
      const at = place(x, value, area.left, area.right);
      context.fillStyle = theme.grid;
      context.fillRect(at, area.top, 1, area.bottom - area.top);
      context.fillStyle = theme.grey;
      if (k % stride === 0) context.fillText(fitting(context, x.label(value), 82 * stride), at, area.bottom + 13);
    });
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil((y.ticks.length * 16) / (area.bottom - area.top)));
    y.ticks.forEach((value, k) => {
      const at = place(y, value, area.bottom, area.top);
      context.fillStyle = theme.grid;
      context.fillRect(area.left, at, area.right - area.left, 1);
      context.fillStyle = theme.grey;
      if (k % every === 0) context.fillText(y.label(value), area.left - 6, at);
    });
    context.textAlign = "center";
    context.fillStyle = theme.text;
    context.fillText(this.x.value, (area.left + area.right) / 2, this.height - 12);
    context.save();
    context.translate(12, (area.top + area.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(this.y.value, 0, 0);
    context.restore();
    context.textAlign = "left";
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let [best, near] = [null, 100];
    for (const point of this.points || []) {
      const away = (point.x - px) ** 2 + (point.y - py) ** 2;
      if (away < near) [best, near] = [point, away];
    }
    if (!best) return tip.hide();
    const titles = [...new Set(["scenario", "plan", this.x.value, this.y.value, this.colour.value, "status", "reason"])];
    tip.show(event, titles.filter((title) => this.by[title])
      .map((title) => `${title}: ${shown(this.by[title].values[best.i], this.by[title].as)}`).join("\n"));
  }
}

// Round values; of bytes round ones of their unit.
function roundTicks(least, most, kind) {
  const [, scale] = (kind === "bytes" && SIZES.find(([, size]) => most >= size)) || ["", 1];
  return ticks(least / scale, most / scale, 7).values.map((value) => value * scale);
}

function tickLabel(value, kind) {
  const [unit, scale] = (kind === "bytes" && SIZES.find(([, size]) => value >= size)) || ["", 1];
  if (value === 0) return "0";
  return unit ? `${digits(value / scale)} ${unit}` : shown(Number(value.toPrecision(12)), kind);
}

function circle(context, { x, y }, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
}

// 1, 2 and 5 times the powers of ten; over many decades the powers alone.
function decades(least, most) {
  const values = [];
  const steps = Math.log10(most / least) > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power++) {
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= least && value <= most) values.push(value);
    }
  }
  return values;
}
