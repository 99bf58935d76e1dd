// The part of the step that all pictures of one time axis show.

class View {
  constructor(length) {
    this.length = Math.max(length, 1);
    this.from = 0;
    this.to = this.length;
    this.watchers = [];
  }

  watch(call) {
    this.watchers.push(call);
  }

  // Show [from, to), kept inside the step.
  show(from, to) {
    const span = clamp(to - from, Math.min(this.length, 10), this.length);
    this.from = clamp(from + (to - from - span) / 2, 0, this.length - span);
    this.to = this.from + span;
    for (const call of this.watchers) call();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(ps) {
    const moved = clamp(ps, -this.from, this.length - this.to);
    this.show(this.from + moved, this.to + moved);
  }
}

const GUTTER = 170; // of names, left of every picture
const AXIS = 22; // of times, above

// Round steps of time, about `count` of them.
function ticks(from, to, count) {
  const raw = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw) || 1;
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
  return { step, found };
}

// All ticks in one unit, with the digits that tell two neighbours apart.
function tickText(ps, step, most) {
  const [unit, scale] = TIMES.find(([, one]) => most >= one) || ["ps", 1];
  const places = clamp(Math.ceil(Math.log10(scale / step) - 1e-9), 0, 12);
  return `${(ps / scale).toFixed(places)} ${unit}`;
}

// The places of the ticks in pixels of the screen, for the lines down from them.
function tickMarks(view, x, width, ratio) {
  const { found } = ticks(view.from, view.to, (width - GUTTER) / 110);
  return found.map((ps) => Math.round(x(ps) * ratio)).filter((at) => at < Math.floor(width * ratio));
}

// The times above the picture; x is the place of a time.
function drawAxis(context, view, x, width) {
  const { step, found } = ticks(view.from, view.to, (width - GUTTER) / 110);
  context.textAlign = "center";
  context.fillStyle = GREY;
  for (const ps of found) {
    const [text, at] = [tickText(ps, step, view.to), x(ps)];
    const half = context.measureText(text).width / 2;
    if (at + half < width && at - half >= GUTTER - 20) context.fillText(text, at, AXIS / 2);
  }
  context.textAlign = "left";
}

// Pan by dragging, zoom by Ctrl and wheel, by Shift and drag, by keys; `idle` is called when the pointer only moves.
function steer(canvas, view, { idle, click, leave }) {
  let drag = null;
  const time = (event) => {
    const box = canvas.getBoundingClientRect();
    return view.from + ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * (view.to - view.from);
  };
  canvas.tabIndex = 0;
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      view.zoom(Math.exp(clamp(event.deltaY, -200, 200) * 0.003), time(event));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan(((event.deltaX || event.deltaY) / 600) * (view.to - view.from));
    }
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, from: view.from, to: view.to, at: time(event), far: false, select: event.shiftKey };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return void idle(event);
    const moved = event.clientX - drag.x;
    if (Math.abs(moved) > 3) drag.far = true;
    if (!drag.far) return;
    tip.hide();
    canvas.classList.add("pan");
    if (drag.select) return;
    const ps = (-moved / (canvas.clientWidth - GUTTER)) * (drag.to - drag.from);
    const from = clamp(drag.from + ps, 0, view.length - (drag.to - drag.from));
    view.show(from, from + drag.to - drag.from);
  });
  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("pan");
    if (drag && !drag.far) click(event);
    else if (drag && drag.select) view.show(...[drag.at, time(event)].sort((a, b) => a - b));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hide(); leave(); });
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const keys = {
      w: () => view.zoom(0.7), "+": () => view.zoom(0.7), s: () => view.zoom(1.4), "-": () => view.zoom(1.4),
      a: () => view.pan(-span / 5), ArrowLeft: () => view.pan(-span / 5),
      d: () => view.pan(span / 5), ArrowRight: () => view.pan(span / 5), 0: () => view.show(0, view.length),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      keys[event.key]();
    }
  });
}
