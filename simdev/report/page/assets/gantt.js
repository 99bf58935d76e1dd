// The Gantt chart on one canvas. What is narrower than a pixel is drawn once a pixel and then skipped by search, so a
// frame costs what is on the screen, not what is in the trace.

const ROW = 20;
const GAP = 7; // between devices
const TALLEST = 620;

class Gantt {
  constructor(told, view, title) {
    this.told = told;
    this.view = view;
    this.names = told.tasks.name;
    this.rows = told.rows.map((row) => this.prepared(row));
    this.place(told.rows);
    this.home = this.homes();
    this.selected = -1;
    this.hits = null;
    this.canvas = element("canvas", { ariaLabel: "Gantt chart", role: "img" });
    this.box = element("div", { className: "rows" }, this.spacer());
    this.detail = element("div", { className: "detail hint" }, "Click a bar for what it waits for and what waits for it.");
    this.part = element("section", {}, element("h2", {}, title), this.bar(), this.legend(),
      element("div", { className: "frame" }, this.box), this.detail);
    this.redraw = perFrame(() => this.draw());
    view.watch(this.redraw);
    this.box.addEventListener("scroll", this.redraw);
    new ResizeObserver(this.redraw).observe(this.box);
    steer(this.canvas, view, {
      idle: (event) => this.hover(event), click: (event) => this.select(this.at(event)), leave: () => {},
    });
    this.canvas.addEventListener("dblclick", (event) => {
      const found = this.at(event);
      if (found) this.zoomTo(found.row.start[found.i], found.row.end[found.i]);
    });
  }

  prepared(row) {
    const { start, length } = this.told.tasks;
    const count = row.tasks.length;
    const made = { ...row, start: new Float64Array(count), end: new Float64Array(count), mark: new Uint8Array(count) };
    for (let i = 0; i < count; i++) {
      made.start[i] = row.start ? row.start[i] : start[row.tasks[i]];
      made.end[i] = made.start[i] + (row.length ? row.length[i] : length[row.tasks[i]]);
    }
    for (const i of row.critical) made.mark[i] = 1;
    return made;
  }

  place(rows) {
    let y = AXIS + 4;
    this.y = rows.map((row, r) => {
      if (r && row.device !== rows[r - 1].device) y += GAP;
      y += ROW;
      return y - ROW;
    });
    this.height = y + 8;
  }

  // The row and place at which each task is found; the critical path, which is first, does not count.
  homes() {
    const home = new Int32Array(2 * this.names.length).fill(-1);
    for (let r = this.rows.length - 1; r > 0; r--) {
      this.rows[r].tasks.forEach((task, i) => { home[2 * task] = r; home[2 * task + 1] = i; });
    }
    return home;
  }

  spacer() {
    this.visible = Math.min(this.height, TALLEST);
    this.box_height = `${this.visible}px`;
    const inner = element("div", {}, this.canvas);
    inner.style.height = `${this.height}px`;
    return inner;
  }

  bar() {
    const button = (text, title, call) => element("button", { type: "button", title, onclick: call }, text);
    this.search = element("input", { type: "search", placeholder: "find ops and transfers", ariaLabel: "find ops and transfers" });
    this.found = element("span", { className: "hint" });
    this.search.oninput = () => this.find(this.search.value);
    this.search.onkeydown = (event) => { if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1); };
    return element("div", { className: "bar" },
      button("+", "zoom in (W)", () => this.view.zoom(0.6)), button("−", "zoom out (S)", () => this.view.zoom(1 / 0.6)),
      button("all", "the whole step (0)", () => this.view.show(0, this.view.length)),
      this.search, button("‹", "the one before", () => this.step(-1)), button("›", "the next one (Enter)", () => this.step(1)),
      this.found,
      element("span", { className: "hint" }, "Drag to pan, Ctrl + wheel or Shift + drag to zoom, double click a bar to fill the width."));
  }

  legend() {
    const items = this.told.kinds.map((kind, k) => {
      const square = element("i");
      square.style.background = this.told.colours[k];
      return element("span", {}, square, kind);
    });
    const red = element("i");
    red.style.background = ALARM;
    const legend = element("div", { className: "legend" }, ...items, element("span", {}, red, "on the critical path"));
    if (this.told.merged) legend.append("Very many spans: neighbours are shown as one.");
    return legend;
  }

  x(ps) {
    return GUTTER + ((ps - this.view.from) / (this.view.to - this.view.from)) * (this.width - GUTTER);
  }

  draw() {
    this.box.style.height = this.box_height;
    this.width = this.box.clientWidth;
    const context = sized(this.canvas, this.width, this.visible);
    const top = this.box.scrollTop;
    const x = (ps) => this.x(ps);
    this.ratio = this.canvas.width / this.width || 1;
    this.raster ||= new Raster(this.canvas);
    this.raster.begin(Math.round(AXIS * this.ratio), tickMarks(this.view, x, this.width, this.ratio));
    const sight = this.rows.map((row, r) => ({ row, r, y: this.y[r] - top })).filter(({ y }) => y > AXIS - ROW && y < this.visible);
    for (const { row, r, y } of sight) this.drawRow(row, y, r);
    this.raster.put(context);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.visible - AXIS);
    context.clip();
    for (const { row, y } of sight) this.drawLabels(context, row, y);
    this.drawSelection(context, top);
    this.drawNames(context, sight);
    context.restore();
    context.clearRect(0, 0, this.width, AXIS);
    drawAxis(context, this.view, x, this.width);
  }

  // One line of pixels a row, copied to its height; the red strip is another one.
  drawRow(row, y, r) {
    const inset = row.computes || r === 0 ? 1.5 : 3.5;
    const strip = this.raster.blank.slice();
    const colours = this.told.colours.map((hex) => Raster.colour(hex, this.hits ? 0.25 : 1));
    this.each(row, null, (left, right, i) => strip.fill(colours[row.kind[i]], left, right));
    if (this.hits) {
      const black = Raster.colour("#111111");
      this.each(row, this.hits[r], (left, right) => strip.fill(black, left, Math.max(right, left + 2)));
    }
    const at = (down) => Math.max(Math.round((y + down) * this.ratio), Math.round(AXIS * this.ratio));
    this.raster.lines(strip, at(inset), at(ROW - inset));
    if (!r) return;
    const red = Raster.colour(ALARM);
    this.each(row, (row.marked ||= indices(row.mark)), (left, right) => strip.fill(red, left, right));
    this.raster.lines(strip, at(ROW - inset - 3), at(ROW - inset));
  }

  // Calls with the left and right pixel (of the screen) and the number of each span in sight, and of what is too narrow
  // one a pixel. `some` are the numbers of the spans that count, rising; null: all.
  each(row, some, call) {
    const { start, end } = row;
    const count = some ? some.length : start.length;
    const at = some ? (k) => some[k] : (k) => k;
    const { from, to } = this.view;
    const [gutter, width] = [Math.round(GUTTER * this.ratio), this.canvas.width];
    const scale = (width - gutter) / (to - from);
    let k = first(count, (j) => end[at(j)] > from || start[at(j)] >= from, 0);
    while (k < count && start[at(k)] <= to) {
      const i = at(k);
      const left = Math.floor(gutter + (Math.max(start[i], from) - from) * scale);
      const right = Math.min(Math.round(gutter + (Math.min(end[i], to) - from) * scale), width);
      if (right - left > 1) {
        call(left, right - left > 4 ? right - 1 : right, i);
        k++;
        continue;
      }
      if (left < width) call(left, left + 1, i);
      const edge = from + (left + 1 - gutter) / scale;
      k = end[at(Math.min(k + 1, count - 1))] > edge ? k + 1 : first(count, (j) => end[at(j)] > edge, k + 1);
    }
  }

  drawLabels(context, row, y) {
    const { from, to } = this.view;
    const scale = (this.width - GUTTER) / (to - from);
    const least = 56 / scale; // ps that hold some letters
    let k = first(row.start.length, (j) => row.end[j] > from, 0);
    let drawn = 0;
    context.font = "11px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
    while (k < row.start.length && row.start[k] < to && drawn < 200 && k - drawn < 4000) {
      const [start, end] = [Math.max(row.start[k], from), Math.min(row.end[k], to)];
      if (end - start > least) {
        const text = cut(this.names[row.tasks[k]], Math.floor(((end - start) * scale - 8) / 6.6));
        context.fillStyle = this.hits ? "#333" : ["#0072B2", "#009E73", "#4D4D4D", "#8C564B", "#9467BD"].includes(this.told.colours[row.kind[k]]) ? "#fff" : "#111";
        if (text) context.fillText(text, GUTTER + (start - from) * scale + 4, y + ROW / 2 + 0.5);
        drawn++;
      }
      k++;
    }
  }

  drawNames(context, sight) {
    context.clearRect(0, AXIS, GUTTER - 4, this.visible - AXIS);
    for (const { row, r, y } of sight) {
      context.font = `${row.computes || r === 0 ? "600 " : ""}12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif`;
      context.fillStyle = row.computes || r === 0 ? "#1c2128" : GREY;
      context.fillText(fitting(context, row.name, GUTTER - 16), 8, y + ROW / 2);
      if (r && row.device !== this.rows[r - 1].device) {
        context.fillStyle = LINE;
        context.fillRect(0, y - GAP / 2, this.width, 1);
      }
    }
  }

  // The selected bar, and lines from what it waits for and to what waits for it.
  drawSelection(context, top) {
    if (this.selected < 0) return;
    const end = this.ends(this.selected, top);
    if (!end) return;
    context.lineWidth = 1.2;
    const { before, after } = this.around(this.selected);
    context.strokeStyle = "#111";
    for (const [tasks, forward] of [[before, false], [after, true]]) {
      for (const task of tasks.slice(0, 60)) {
        const other = this.ends(task, top);
        if (!other) continue;
        const [a, b] = forward ? [end, other] : [other, end];
        context.globalAlpha = 0.55;
        context.beginPath();
        context.moveTo(a.right, a.y);
        const bend = Math.max(18, Math.abs(b.left - a.right) / 3);
        context.bezierCurveTo(a.right + bend, a.y, b.left - bend, b.y, b.left, b.y);
        context.stroke();
      }
    }
    context.globalAlpha = 1;
    context.lineWidth = 2;
    context.strokeRect(end.left, end.y - ROW / 2 + 1, Math.max(end.right - end.left, 2), ROW - 2);
  }

  ends(task, top) {
    const r = this.home[2 * task];
    if (r < 0) return null;
    const row = this.rows[r];
    const i = this.home[2 * task + 1];
    // Far outside of the picture a line would lose its place to rounding.
    const x = (ps) => clamp(this.x(ps), -2000, this.width + 2000);
    return { left: x(row.start[i]), right: x(row.end[i]), y: this.y[r] - top + ROW / 2 };
  }

  around(task) {
    const told = this.told.before;
    if (!told) return { before: [], after: [] };
    if (!this.from) {
      this.from = new Int32Array(told.count.length + 1);
      told.count.forEach((count, i) => { this.from[i + 1] = this.from[i] + count; });
      this.after = new Map();
      for (let i = 0; i < told.count.length; i++) {
        for (let k = this.from[i]; k < this.from[i + 1]; k++) {
          const list = this.after.get(told.ids[k]);
          if (list) list.push(i);
          else this.after.set(told.ids[k], [i]);
        }
      }
    }
    return { before: told.ids.slice(this.from[task], this.from[task + 1]), after: this.after.get(task) || [] };
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    if (px < GUTTER || py < AXIS) return null;
    const y = py + this.box.scrollTop;
    const r = this.y.findIndex((top) => y >= top && y < top + ROW);
    if (r < 0) return null;
    const row = this.rows[r];
    const scale = (this.view.to - this.view.from) / (this.width - GUTTER);
    const ps = this.view.from + (px - GUTTER) * scale;
    const k = first(row.start.length, (j) => row.end[j] > ps, 0);
    const near = [k, k - 1].filter((i) => i >= 0 && i < row.start.length)
      .map((i) => ({ i, away: Math.max(row.start[i] - ps, ps - row.end[i], 0) }))
      .sort((a, b) => a.away - b.away)[0];
    return near && near.away <= 3 * scale ? { row, r, i: near.i, task: row.tasks[near.i] } : null;
  }

  text({ row, i, task }) {
    const { source, destination, bytes } = this.told.tasks;
    const { devices, kinds } = this.told;
    const [start, end] = [row.start[i], row.end[i]];
    const lines = [this.names[task], `${kinds[row.kind[i]]}, ${FORMATS.time(end - start)}`,
      `from ${FORMATS.time(start)} to ${FORMATS.time(end)}`];
    if (source[task] !== destination[task]) lines.push(`${devices[source[task]]} → ${devices[destination[task]]}`);
    if (bytes[task]) lines.push(`${FORMATS.bytes(bytes[task])}${end > start ? `, ${FORMATS.bytes((bytes[task] * 1e12) / (end - start))}/s` : ""}`);
    if (row.mark[i]) lines.push("on the critical path");
    return lines;
  }

  hover(event) {
    const found = this.at(event);
    if (found) tip.show(event, this.text(found).join("\n"));
    else tip.hide();
  }

  select(found) {
    this.selected = found ? found.task : -1;
    this.detail.replaceChildren();
    if (found) {
      this.detail.classList.remove("hint");
      this.detail.append(element("b", {}, this.names[found.task]), ` ${this.text(found).slice(1).join(" · ")}`);
      if (this.told.before) {
        const { before, after } = this.around(found.task);
        this.detail.append(this.links("waits for", before), this.links("is waited for by", after));
      }
    }
    this.redraw();
  }

  links(title, tasks) {
    const made = element("div", {}, `${title} ${tasks.length ? "" : "nothing"}`);
    for (const task of tasks.slice(0, 12)) made.append(element("a", { onclick: () => this.go(task) }, this.names[task]));
    if (tasks.length > 12) made.append(`and ${tasks.length - 12} more`);
    return made;
  }

  // Bring a task into sight and select it.
  go(task) {
    const r = this.home[2 * task];
    if (r < 0) return;
    const [row, i] = [this.rows[r], this.home[2 * task + 1]];
    const span = this.view.to - this.view.from;
    if (row.start[i] < this.view.from || row.end[i] > this.view.to) {
      const middle = (row.start[i] + row.end[i]) / 2;
      const wanted = Math.max(span, (row.end[i] - row.start[i]) * 1.5);
      this.view.show(middle - wanted / 2, middle + wanted / 2);
    }
    const y = this.y[r] - this.box.scrollTop;
    if (y < AXIS || y > this.visible - ROW) this.box.scrollTop = this.y[r] - this.visible / 2;
    this.select({ row, r, i, task });
  }

  zoomTo(from, to) {
    const margin = Math.max((to - from) * 0.05, 1);
    this.view.show(from - margin, to + margin);
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.hits = null;
    this.list = [];
    this.found.textContent = "";
    if (wanted) {
      this.lower ||= this.names.map((name) => name.toLowerCase());
      const is = new Uint8Array(this.names.length);
      this.lower.forEach((name, task) => { if (name.includes(wanted)) is[task] = 1; });
      this.hits = this.rows.map((row) => indices(row.tasks.map((task) => is[task])));
      const { start } = this.told.tasks;
      this.list = indices(is).sort((a, b) => start[a] - start[b]);
      this.turn = -1;
      this.found.textContent = `${this.list.length.toLocaleString("en-US")} found`;
    }
    this.redraw();
  }

  step(by) {
    if (!this.list || !this.list.length) return;
    this.turn = (this.turn + by + this.list.length + (this.turn < 0 && by < 0 ? 1 : 0)) % this.list.length;
    this.found.textContent = `${this.turn + 1} of ${this.list.length.toLocaleString("en-US")}`;
    this.go(this.list[this.turn]);
  }
}

// The first of `count` numbers from `least` on for which `holds`; it holds for all after one for which it holds.
function first(count, holds, least) {
  let [low, high] = [least, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function indices(marks) {
  const found = [];
  for (let i = 0; i < marks.length; i++) if (marks[i]) found.push(i);
  return found;
}

function cut(text, letters) {
  if (letters >= text.length) return text;
  if (letters < 4) return "";
  const tail = (letters - 1) >> 1;
  return `${text.slice(0, letters - 1 - tail)}…${text.slice(text.length - tail)}`;
}
