// What everything here needs: elements, numbers as people read them, the tip at the pointer.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ALARM = "#c01c28";
const GREY = "#5b6470";
const LINE = "#d9dde3";
const SERIES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#7A5C00", "#9467BD", "#17BECF", "#7F7F7F", "#000000"];

// An element with properties; children are elements or texts, and a text is never markup.
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

function digits(value, count = 4) {
  return String(Number(value.toPrecision(count)));
}

function scaled(value, scales, smallest) {
  for (const [unit, scale] of scales) {
    if (Math.abs(value) >= scale) return `${digits(value / scale)} ${unit}`;
  }
  return `${digits(value)} ${smallest}`;
}

const TIMES = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]];
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

const RATES = [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]];

const FORMATS = {
  text: String,
  count: (value) => value.toLocaleString("en-US"),
  number: (value) => (Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value, 5)),
  time: (ps) => scaled(ps, TIMES, "ps"),
  bytes: (size) => {
    const [unit, scale] = SIZES.find(([, one]) => Math.abs(size) >= one) || ["B", 1];
    return `${(size / scale).toFixed(scale > 1 ? 2 : 0)} ${unit}`;
  },
  rate: (rate) => scaled(rate, RATES, "B/s"),
  share: (part) => `${(100 * part).toFixed(1)}%`,
  limit: (size) => FORMATS.bytes(size),
  change: (part) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)}%`,
};

function shown(value, kind) {
  if (value === null || value === undefined) return kind === "limit" ? "unlimited" : "–";
  return typeof value === "number" ? (FORMATS[kind] || String)(value) : String(value);
}

const tip = {
  box: document.getElementById("tip"),
  show(event, text) {
    this.box.textContent = text;
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 16;
    this.box.style.left = `${Math.max(left, 4)}px`;
    this.box.style.top = `${Math.max(top, 4)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

// A canvas of so many CSS pixels, sharp on any screen. Returns its context, cleared.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d", { willReadFrequently: true }); // pixels are written by this script, see Raster
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
  context.textBaseline = "middle";
  return context;
}

// The pixels of a canvas, written by hand: tens of thousands of rectangles a frame would be too slow to draw. Everything
// here is in pixels of the screen. `blank` is one line of background with the lines of the time axis.
class Raster {
  constructor(canvas) {
    this.canvas = canvas;
  }

  // Every line from `top` on begins as the background, with a light pixel at each of `marks`.
  begin(top, marks) {
    const { width, height } = this.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = new ImageData(Math.max(width, 1), Math.max(height, 1));
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.blank = new Uint32Array(width);
    }
    this.blank.fill(0);
    for (const x of marks) this.blank[x] = Raster.colour("#e8eaee");
    this.pixels.fill(0);
    for (let y = top; y < height; y++) this.pixels.set(this.blank, y * width);
  }

  // Copy a line of pixels to all lines from `from` to `to`.
  lines(strip, from, to) {
    const { width, height } = this.canvas;
    for (let y = Math.max(from, 0); y < Math.min(to, height); y++) this.pixels.set(strip, y * width);
  }

  // A column of one pixel's width.
  column(x, from, to, colour) {
    const { width, height } = this.canvas;
    for (let y = Math.max(from, 0); y < Math.min(to, height); y++) this.pixels[y * width + x] = colour;
  }

  put(context) {
    context.putImageData(this.image, 0, 0);
  }

  // "#rrggbb" as a pixel, mixed with white where `part` is under 1.
  static colour(hex, part = 1) {
    const [red, green, blue] = [1, 3, 5].map((at) => Math.round(255 - (255 - parseInt(hex.slice(at, at + 2), 16)) * part));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
}

// At most one call a frame, however often it is asked for.
function perFrame(call) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      call();
    });
  };
}

// The text cut in its middle to so many pixels, for names differ at both ends.
function fitting(context, text, width) {
  const known = (fitting.known ||= new Map());
  const at = (length) => {
    if (length >= text.length) return text;
    const tail = (length - 1) >> 1;
    return `${text.slice(0, length - 1 - tail)}…${text.slice(text.length - tail)}`;
  };
  const key = `${Math.round(width)} ${text}`;
  if (known.has(key)) return known.get(key);
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (context.measureText(at(middle)).width <= width) least = middle;
    else most = middle - 1;
  }
  const found = least < Math.min(text.length, 3) ? "" : at(least);
  if (known.size > 20000) known.clear();
  known.set(key, found);
  return found;
}
