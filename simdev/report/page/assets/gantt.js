// The Gantt chart on one canvas: rows of bars, their names, what is selected and what it waits for.

const GAP = 7; // between devices
const TALLEST = 620;

class Gantt {
  constructor(view, title) {
    this.view = view;
    this.timeline = null;
    this.selected = -1;
    this.hits = null;
    this.wanted = "";
    this.canvas = element("canvas", { ariaLabel: `${title}. ${KEYS} N and P select the next bar and the one before.`, role: "application" });
    this.inner = element("div", {}, this.canvas);
    this.box = element("div", { className: "rows" }, this.inner);
    this.detail = element("div", { className: "detail hint", role: "status" });
    this.legend = element("div", { className: "legend" });
    this.heading = element("h2", {}, title);
    this.part = element("section", { ariaLabel: title }, this.heading, this.bar(), this.legend,
      element("div", { className: "frame" }, this.box), this.detail);
    this.redraw = drawing(this.box, () => this.draw());
    view.watch(this.redraw);
    this.box.addEventListener("scroll", this.redraw);
    const scroll = (by) => () => { this.box.scrollTop += by; };
    steer(this.canvas, view, {
      idle: (event) => this.hover(event), click: (event) => this.clicked(event),
      keys: { ArrowUp: scroll(-2 * ROW), ArrowDown: scroll(2 * ROW), n: () => this.neighbour(1), p: () => this.neighbour(-1), Escape: () => this.select(null) },
    });
    this.canvas.addEventListener("dblclick", (event) => {
      const hit = this.at(event);
      if (hit) this.zoomTo(hit.row.start[hit.i], hit.row.end[hit.i]);
    });
  }

  // Show another timeline; what was searched for is searched anew, what was selected stays where its name does.
  take(timeline) {
    const kept = this.selected >= 0 ? this.tasks.names[this.selected] : null;
    this.timeline = timeline;
    this.tasks = new Tasks(timeline);
    const open = new Set((this.rows || []).filter((row) => row.open).map((row) => row.name));
    this.rows = folded(timeline.rows.map((row) => prepared(row, timeline.tasks)), timeline.folds, open);
    this.home = this.homes();
    const items = timeline.kinds.map((kind, k) => element("span", {}, swatch(timeline.colours[k]), kind));
    this.legend.replaceChildren(...items, element("span", {}, swatch(ALARM), "on the critical path"));
    if (timeline.merged) this.legend.append("Very many spans: neighbours are shown as one, as pale as they are busy.");
    this.unfold.hidden = !timeline.folds.length;
    this.place();
    this.find(this.wanted);
    this.go(kept === null ? -1 : this.tasks.names.indexOf(kept), false);
  }

  // How far down each row stands; -1 where it is folded into another.
  place() {
    let [y, above] = [AXIS + 4, null];
    this.y = this.rows.map((row) => {
      if (row.into && !row.into.open) return -1;
      row.isApart = above !== null && row.device !== above.device;
      above = row;
      y += row.isApart ? GAP + ROW : ROW;
      return y - ROW;
    });
    this.height = y + 8;
    this.visible = Math.min(this.height, TALLEST);
    this.inner.style.height = `${this.height}px`;
    this.box.style.height = `${this.visible}px`;
    const shut = this.rows.some((row) => row.folds && !row.open);
    this.unfold.textContent = shut ? "unfold rows" : "fold rows";
    this.redraw();
  }

  fold(open, some = this.rows) {
    for (const row of some) if (row.folds) row.open = open;
    this.place();
  }

  // The row and place of each task; the critical path, which is first, does not count.
  homes() {
    const home = new Int32Array(2 * this.tasks.names.length).fill(-1);
    for (let r = this.rows.length - 1; r > 0; r--) {
      if (!this.rows[r].folds) this.rows[r].tasks.forEach((task, i) => { home[2 * task] = r; home[2 * task + 1] = i; });
    }
    return home;
  }

  bar() {
    const { view } = this;
    this.search = element("input", { type: "search", placeholder: "find ops and transfers", ariaLabel: "find ops and transfers" });
    this.count = element("span", { className: "hint", role: "status" });
    this.search.oninput = () => this.find(this.search.value);
    this.search.onkeydown = (event) => { if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1); };
    this.unfold = element("button", { type: "button" });
    this.unfold.onclick = () => this.fold(this.rows.some((row) => row.folds && !row.open));
    return element("div", { className: "bar" },
      button("+", "zoom in (W)", () => view.zoom(0.6)), button("−", "zoom out (S)", () => view.zoom(1 / 0.6)),
      button("all", "the whole step (0)", () => view.show(0, view.length)), this.unfold,
      this.search, button("‹", "the one before", () => this.step(-1)), button("›", "the next one (Enter)", () => this.step(1)), this.count,
      element("span", { className: "hint" }, "Drag to pan, Ctrl + wheel, two fingers or Shift + drag to zoom, double click a bar to fill the width."));
  }

  draw() {
    const width = this.box.clientWidth;
    if (!this.timeline || !width) return;
    const context = sized(this.canvas, width, this.visible);
    const [axis, top, ratio] = [new Axis(this.view, width), this.box.scrollTop, this.canvas.width / width];
    this.axis = axis;
    this.raster ||= new Raster(this.canvas);
    this.raster.begin(Math.round(AXIS * ratio), axis.marks(ratio));
    const hexes = this.timeline.colours.map((hex) => (this.hits ? mixed(paint(hex), theme.ground, 0.25) : paint(hex)));
    const [tones, inks] = [hexes.map(channels), hexes.map(ink)];
    const sight = this.rows.map((row, r) => ({ row, r, y: this.y[r] - top }))
      .filter(({ r, y }) => this.y[r] >= 0 && y > AXIS - ROW && y < this.visible);
    for (const { row, r, y } of sight) {
      drawBars(this.raster, row, axis, ratio, { y, hits: this.hits && this.hits[r], tones, isPath: r === 0 });
    }
    this.raster.put(context);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, width, this.visible - AXIS);
    context.clip();
    context.font = `11px ${FONT}`;
    for (const { row, y } of sight) drawLabels(context, row, this.tasks.names, axis, y, inks);
    this.drawSelection(context, axis, top);
    this.drawNames(context, axis, sight);
    context.restore();
    context.clearRect(0, 0, width, AXIS);
    axis.draw(context);
  }

  drawNames(context, axis, sight) {
    context.clearRect(0, AXIS, axis.left - 4, this.visible - AXIS);
    for (const { row, r, y } of sight) {
      const strong = row.computes || r === 0;
      context.font = `${strong ? "600 " : ""}12px ${FONT}`;
      context.fillStyle = strong ? theme.text : theme.grey;
      const name = row.folds ? `${row.open ? "▾" : "▸"} ${row.name}` : row.name;
      context.fillText(fitting(context, name, axis.left - 16), 8, y + ROW / 2);
      if (row.isApart) {
        context.fillStyle = theme.line;
        context.fillRect(0, y - GAP / 2, axis.width, 1);
      }
    }
  }

  // The selected bar, and lines from what it waits for and to what waits for it.
  drawSelection(context, axis, top) {
    const end = this.selected >= 0 && this.ends(axis, this.selected, top);
    if (!end) return;
    const { before, after } = this.tasks.around(this.selected) || { before: [], after: [] };
    context.strokeStyle = theme.text;
    context.lineWidth = 1.2;
    context.globalAlpha = 0.55;
    for (const [tasks, forward] of [[before, false], [after, true]]) {
      for (const task of tasks.slice(0, 60)) {
        const other = this.ends(axis, task, top);
        if (!other) continue;
        const [a, b] = forward ? [end, other] : [other, end];
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

  ends(axis, task, top) {
    const [r, i] = [this.home[2 * task], this.home[2 * task + 1]];
    if (r < 0) return null;
    const row = this.rows[r];
    const y = this.y[r] >= 0 ? this.y[r] : this.y[this.rows.indexOf(row.into)];
    // Far outside of the picture a line would lose its place to rounding.
    const x = (ps) => clamp(axis.x(ps), -2000, axis.width + 2000);
    return { left: x(row.start[i]), right: x(row.end[i]), y: y - top + ROW / 2 };
  }

  // The bar at the pointer.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    if (!this.axis || px < this.axis.left || py < AXIS) return null;
    const row = this.rowAt(py);
    if (!row) return null;
    const ps = this.axis.time(px);
    const k = over(row.end, ps, 0);
    const near = [k, k - 1].filter((i) => i >= 0 && i < row.start.length)
      .map((i) => ({ i, away: Math.max(row.start[i] - ps, ps - row.end[i], 0) }))
      .sort((a, b) => a.away - b.away)[0];
    return near && near.away * this.axis.scale <= 3 ? { row, i: near.i, task: row.tasks[near.i] } : null;
  }

  rowAt(down) {
    const y = down + this.box.scrollTop;
    return this.rows[this.y.findIndex((top) => top >= 0 && y >= top && y < top + ROW)];
  }

  clicked(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rowAt(event.clientY - box.top);
    if (row && row.folds && event.clientX - box.left < this.axis.left) this.fold(!row.open, [row]);
    else this.select(this.at(event));
  }

  hover(event) {
    const hit = this.at(event);
    if (hit) tip.show(event, this.tasks.text(hit).join("\n"));
    else tip.hide();
  }

  select(hit) {
    this.selected = hit ? hit.task : -1;
    this.detail.classList.toggle("hint", !hit);
    if (!hit) this.detail.replaceChildren("Click a bar for what it waits for and what waits for it.");
    else {
      this.detail.replaceChildren(element("b", {}, this.tasks.names[hit.task]), ` ${this.tasks.text(hit).slice(1).join(" · ")}`);
      const around = this.tasks.around(hit.task);
      if (around) this.detail.append(this.links("waits for", around.before), this.links("is waited for by", around.after));
    }
    this.redraw();
  }

  links(title, tasks) {
    const made = element("div", {}, `${title}${tasks.length ? "" : " nothing"}`);
    for (const task of tasks.slice(0, 12)) {
      made.append(element("button", { type: "button", className: "link", onclick: () => this.go(task) }, this.tasks.names[task]));
    }
    if (tasks.length > 12) made.append(`and ${tasks.length - 12} more`);
    return made;
  }

  // Select a task, and bring it into sight.
  go(task, bring = true) {
    const r = task < 0 ? -1 : this.home[2 * task];
    if (r < 0) return this.select(null);
    const [row, i] = [this.rows[r], this.home[2 * task + 1]];
    const { view } = this;
    if (bring && row.into && !row.into.open) this.fold(true, [row.into]);
    if (bring && (row.start[i] < view.from || row.end[i] > view.to)) {
      const middle = (row.start[i] + row.end[i]) / 2;
      const wanted = Math.max(view.to - view.from, (row.end[i] - row.start[i]) * 1.5);
      view.show(middle - wanted / 2, middle + wanted / 2);
    }
    const y = this.y[r] - this.box.scrollTop;
    if (bring && (y < AXIS || y > this.visible - ROW)) this.box.scrollTop = this.y[r] - this.visible / 2;
    this.select({ row, i, task });
  }

  // The bar after, or before, the selected one in its row; at first the first in sight that computes.
  neighbour(by) {
    const r = this.selected < 0 ? Math.max(this.rows.findIndex((row, k) => k && row.computes), 0) : this.home[2 * this.selected];
    const row = this.rows[r];
    const i = this.selected < 0 ? over(row.end, this.view.from, 0) : this.home[2 * this.selected + 1] + by;
    if (i >= 0 && i < row.tasks.length) this.go(row.tasks[i]);
  }

  zoomTo(from, to) {
    const margin = Math.max((to - from) * 0.05, 1);
    this.view.show(from - margin, to + margin);
  }

  find(text) {
    this.wanted = text.trim().toLowerCase();
    this.hits = null;
    this.list = [];
    this.count.textContent = "";
    if (this.wanted) {
      const { holds, list } = this.tasks.holding(this.wanted);
      this.hits = this.rows.map((row) => indices(row.tasks.map((task) => holds[task])));
      this.list = list;
      this.turn = -1;
      this.count.textContent = `${list.length.toLocaleString("en-US")} hold this`;
    }
    this.redraw();
  }

  step(by) {
    if (!this.list.length) return;
    this.turn = (this.turn + by + this.list.length + (this.turn < 0 && by < 0 ? 1 : 0)) % this.list.length;
    this.count.textContent = `${this.turn + 1} of ${this.list.length.toLocaleString("en-US")}`;
    this.go(this.list[this.turn]);
  }
}
