// The part of the step that all pictures of one time axis show, and what moves it.

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

  // Another step, of which the same part of time is shown; of a whole one the whole.
  take(length) {
    const whole = this.from === 0 && this.to === this.length;
    this.length = Math.max(length, 1);
    this.show(...(whole ? [0, this.length] : [this.from, this.to]));
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

const AXIS = 22; // of times, above every picture

// The room for names, left of every picture of such a width.
function gutter(width) {
  return width < 640 ? Math.max(72, Math.round(width * 0.24)) : 170;
}

// Round steps of time, about `count` of them.
function ticks(from, to, count) {
  const raw = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= raw) || 1;
  const values = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) values.push(i * step);
  return { step, values };
}

// All ticks in one unit, with the digits that tell two neighbours apart.
function tickText(ps, step, most) {
  const [unit, scale] = TIMES.find(([, least]) => most >= least) || ["ps", 1];
  const places = clamp(Math.ceil(Math.log10(scale / step) - 1e-9), 0, 12);
  return `${(ps / scale).toFixed(places)} ${unit}`;
}

// A picture on the axis of a view: the place of a time in CSS pixels and the time of a place.
class Axis {
  constructor(view, width) {
    this.view = view;
    this.width = width;
    this.left = gutter(width);
    this.scale = (width - this.left) / (view.to - view.from); // pixels a ps
  }

  x(ps) {
    return this.left + (ps - this.view.from) * this.scale;
  }

  time(x) {
    return this.view.from + (x - this.left) / this.scale;
  }

  ticks() {
    return ticks(this.view.from, this.view.to, (this.width - this.left) / 110);
  }

  // The places of the ticks in pixels of the screen, for the lines down from them.
  marks(ratio) {
    return this.ticks().values.map((ps) => Math.round(this.x(ps) * ratio)).filter((at) => at < Math.floor(this.width * ratio));
  }

  // The times above the picture.
  draw(context) {
    const { step, values } = this.ticks();
    context.textAlign = "center";
    context.font = `12px ${FONT}`;
    context.fillStyle = theme.grey;
    for (const ps of values) {
      const [text, at] = [tickText(ps, step, this.view.to), this.x(ps)];
      const half = widthOf(context, text) / 2;
      if (at + half < this.width && at - half >= this.left - 20) context.fillText(text, at, AXIS / 2);
    }
    context.textAlign = "left";
  }
}

// Pan by dragging, zoom by Ctrl and wheel, by two fingers, by Shift and drag, by keys; `idle` is called when the pointer
// only moves, `keys` are calls by key beside those of time.
function steer(canvas, view, { idle, click = () => {}, keys = {} }) {
  const fingers = new Map();
  let drag = null;
  const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const time = (event) => new Axis(view, canvas.clientWidth).time(place(event));
  const begin = (event, far = false) => {
    drag = { x: event.clientX, from: view.from, to: view.to, at: time(event), far, select: event.shiftKey };
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
    fingers.set(event.pointerId, event.clientX);
    begin(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return void idle(event);
    if (fingers.size === 2) return pinch(event);
    const moved = event.clientX - drag.x;
    if (Math.abs(moved) > 3) drag.far = true;
    if (!drag.far) return;
    tip.hide();
    canvas.classList.add("pan");
    if (drag.select) return;
    const ps = (-moved / (canvas.clientWidth - gutter(canvas.clientWidth))) * (drag.to - drag.from);
    const from = clamp(drag.from + ps, 0, view.length - (drag.to - drag.from));
    view.show(from, from + drag.to - drag.from);
  });

  function pinch(event) {
    const other = [...fingers].find(([finger]) => finger !== event.pointerId)[1];
    const [before, now] = [Math.abs(fingers.get(event.pointerId) - other), Math.abs(event.clientX - other)];
    if (before > 8 && now > 8) view.zoom(before / now, time({ clientX: (event.clientX + other) / 2 }));
    fingers.set(event.pointerId, event.clientX);
    begin(event, true); // the finger that stays goes on from here
  }

  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    canvas.classList.remove("pan");
    if (drag && !drag.far) click(event);
    else if (drag && drag.select) view.show(...[drag.at, time(event)].sort((a, b) => a - b));
    drag = null;
  });
  canvas.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const all = {
      w: () => view.zoom(0.7), "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), s: () => view.zoom(1.4), "-": () => view.zoom(1.4),
      a: () => view.pan(-span / 5), ArrowLeft: () => view.pan(-span / 5), Home: () => view.pan(-view.length),
      d: () => view.pan(span / 5), ArrowRight: () => view.pan(span / 5), End: () => view.pan(view.length),
      0: () => view.show(0, view.length), ...keys,
    };
    if (all[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      all[event.key]();
    }
  });
}
const KEYS = "Arrow keys move, plus and minus zoom, 0 shows the whole step.";
