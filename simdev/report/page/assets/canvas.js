// What is drawn on: canvases that are sharp on any screen, pixels written by hand, texts that fit.

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

// A canvas of so many CSS pixels. Returns its context, cleared.
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
  context.font = `12px ${FONT}`;
  context.textBaseline = "middle";
  return context;
}

// A call that draws `part` at most once a frame. While it is out of sight it waits, for panning moves all pictures of a page;
// the first picture is drawn at once, and `now` draws whatever is in sight.
function drawing(part, draw) {
  let [waits, isDrawn, inSight] = [false, false, true];
  const now = () => {
    waits = false;
    isDrawn = true;
    draw();
  };
  const soon = perFrame(() => {
    if (inSight || !isDrawn) now();
    else waits = true;
  });
  new IntersectionObserver(([entry]) => {
    inSight = entry.isIntersecting;
    if (inSight && waits) now();
  }, { rootMargin: "120px" }).observe(part);
  new ResizeObserver(soon).observe(part);
  redrawn.add(now);
  return soon;
}

// The pixels of a canvas, written by hand: tens of thousands of rectangles a frame would be too slow to draw. Everything
// here is in pixels of the screen. `blank` is one line of background with the lines of the time axis.
class Raster {
  constructor(canvas) {
    this.canvas = canvas;
  }

  // Every line from `top` on begins as the background, with a faint pixel at each of `marks`.
  begin(top, marks) {
    const { width, height } = this.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = new ImageData(Math.max(width, 1), Math.max(height, 1));
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.blank = new Uint32Array(width);
      this.strip = new Uint32Array(width); // a line that is being drawn
    }
    const faint = Raster.colour(theme.grid);
    this.blank.fill(0);
    for (const x of marks) this.blank[x] = faint;
    this.pixels.fill(0);
    if (marks.length) for (let y = top; y < height; y++) this.pixels.set(this.blank, y * width);
  }

  // The line that is being drawn, as background.
  cleared() {
    this.strip.set(this.blank);
    return this.strip;
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

  // "#rrggbb" as a pixel, mixed with the ground where `part` is under 1.
  static colour(hex, part = 1) {
    const [red, green, blue] = channels(part < 1 ? mixed(hex, theme.ground, part) : hex);
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
}

// The text cut in its middle to so many pixels, for names differ at both ends.
function fitting(context, text, width) {
  const known = (fitting.known ||= new Map());
  const at = (length) => {
    if (length >= text.length) return text;
    const tail = (length - 1) >> 1;
    return `${text.slice(0, length - 1 - tail)}…${text.slice(text.length - tail)}`;
  };
  const key = `${Math.round(width)} ${context.font} ${text}`;
  if (known.has(key)) return known.get(key);
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (context.measureText(at(middle)).width <= width) least = middle;
    else most = middle - 1;
  }
  const cut = least < Math.min(text.length, 3) ? "" : at(least);
  if (known.size > 20000) known.clear();
  known.set(key, cut);
  return cut;
}

// How wide a text is in pixels; measuring takes longer than drawing, so it is remembered.
function widthOf(context, text) {
  const known = (widthOf.known ||= new Map());
  const key = `${context.font} ${text}`;
  let width = known.get(key);
  if (width === undefined) {
    if (known.size > 50000) known.clear();
    width = context.measureText(text).width;
    known.set(key, width);
  }
  return width;
}
