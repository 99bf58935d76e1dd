// The bars of a row in pixels.

const ROW = 20;
const JOINED = 6; // CSS pixels: red marks that lie closer are one, else many short ops look like a ladder
const LEAST_MARK = 4; // and what is shorter is left to the row of the critical path
const LONG = 6; // pixels of the screen: from this length a border tells a span from the next of its kind
const BORDER = 0.4; // of the text's colour in it

// A row of the data with the times of its spans, which stand in the row or with its tasks.
function prepared(row, tasks) {
  const count = row.tasks.length;
  const made = { ...row, start: new Float64Array(count), end: new Float64Array(count), critical: Int32Array.from(row.critical) };
  for (let i = 0; i < count; i++) {
    made.start[i] = row.start ? row.start[i] : tasks.start[row.tasks[i]];
    made.end[i] = made.start[i] + (row.length ? row.length[i] : tasks.length[row.tasks[i]]);
  }
  return made;
}

// The rows with one more before each fold, which shows when any of its members does something. It holds its members as
// `folds`, they hold it as `into`; `open` are the names of those that are unfolded.
function folded(rows, folds, open) {
  const made = rows.slice();
  for (const { first: at, count, name, row: all } of [...folds].reverse()) {
    const members = rows.slice(at, at + count);
    const shared = all ? prepared(all) : together(members);
    const row = { ...shared, name, device: members[0].device, computes: members[0].computes, folds: members, open: open.has(name) };
    for (const member of members) member.into = row;
    made.splice(at, 0, row);
  }
  return made;
}

// A span as long as any of the rows shows a kind.
function together(rows) {
  const spans = rows.flatMap((row) => Array.from(row.start, (start, i) => [start, row.end[i], row.kind[i], row.tasks[i]]));
  spans.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const kept = [];
  for (const [start, end, kind, task] of spans) {
    const last = kept[kept.length - 1];
    if (!last || start > last[1]) kept.push([start, end, kind, task]);
    else if (kind === last[2]) last[1] = Math.max(last[1], end);
    else if (end > last[1]) kept.push([last[1], end, kind, task]);
  }
  const column = (k) => kept.map((span) => span[k]);
  return {
    start: Float64Array.from(column(0)), end: Float64Array.from(column(1)), kind: column(2), tasks: column(3), critical: new Int32Array(0),
  };
}

// The first of `count` numbers from `least` on for which `holds`; it holds for all after the first for which it holds.
function first(count, holds, least = 0) {
  let [low, high] = [least, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The first of the times, which rise, that is over `limit`: `first` without a call a step, for a frame asks it often.
function over(times, limit, low) {
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Paints into a line of pixels what the spans of a row cover of each: as strong as the covered share, in the mean colour of
// what covers it (as `coverage` of figures/rows.py), so that the ink of a row is its busy share at any zoom. `tones` are
// colours as channels, by kind; where spans are `bordered` the last pixel of a long one before another of its kind is.
function paintCover(strip, row, axis, ratio, tones, bordered = false) {
  const { start, end, kind, busy } = row;
  const { from, to } = axis.view;
  const left0 = Math.round(axis.left * ratio);
  const scale = (strip.length - left0) / (to - from);
  const cover = covers(strip.length + 1);
  const flat = tones.flat();
  const borders = [];
  let wasLong = false;
  for (let i = over(end, from, 0); i < start.length && start[i] < to; i++) {
    const left = left0 + (Math.max(start[i], from) - from) * scale;
    const right = left0 + (Math.min(end[i], to) - from) * scale;
    const share = busy ? busy[i] / (end[i] - start[i] || 1) : 1;
    const k = 3 * kind[i];
    let x = Math.floor(left);
    // What the span covers of its first pixel, of those that it fills, of its last.
    for (let at = left; at < right; x++) {
      const next = right < x + 1 ? right : x + 1;
      const part = share * (next - at);
      cover[4 * x] += part * flat[k];
      cover[4 * x + 1] += part * flat[k + 1];
      cover[4 * x + 2] += part * flat[k + 2];
      cover[4 * x + 3] += part;
      at = next;
    }
    const isLong = (end[i] - start[i]) * scale >= LONG;
    if (bordered && isLong && wasLong && kind[i] === kind[i - 1] && start[i] > from && (start[i] - end[i - 1]) * scale < 1) {
      borders.push(i - 1);
    }
    wasLong = isLong;
  }
  const ground = channels(theme.ground);
  const faint = channels(theme.grid);
  for (let x = left0; x < strip.length; x++) {
    const whole = cover[4 * x + 3];
    if (!whole) continue;
    const fade = Math.max(whole, 1); // spans of a row lie apart, but for rounding
    const rest = Math.max(1 - whole, 0);
    const below = strip[x] ? faint : ground;
    strip[x] = pixel(cover[4 * x] / fade + rest * below[0], cover[4 * x + 1] / fade + rest * below[1], cover[4 * x + 2] / fade + rest * below[2]);
  }
  const ink = channels(theme.text);
  for (const i of borders) {
    const x = Math.ceil(left0 + (end[i] - from) * scale) - 1;
    strip[x] = pixel(...tones[kind[i]].map((value, c) => BORDER * ink[c] + (1 - BORDER) * value));
  }
}

// Zeros for red, green, blue and the covered share of so many pixels.
function covers(width) {
  covers.kept = covers.kept && covers.kept.length === 4 * width ? covers.kept.fill(0) : new Float64Array(4 * width);
  return covers.kept;
}

function pixel(red, green, blue) {
  return ((255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;
}

// Calls with the left and right pixel of each stretch of the spans of these numbers; those closer than `joined` pixels are
// one stretch.
function eachStretch({ start, end }, some, axis, ratio, width, joined, call) {
  const { from, to } = axis.view;
  const left0 = Math.round(axis.left * ratio);
  const scale = (width - left0) / (to - from);
  let k = first(some.length, (j) => end[some[j]] > from);
  let [begin, last] = [-1, -1];
  while (k < some.length && start[some[k]] <= to) {
    const left = Math.floor(left0 + (Math.max(start[some[k]], from) - from) * scale);
    const right = Math.min(Math.round(left0 + (Math.min(end[some[k]], to) - from) * scale), width);
    if (begin >= 0 && left - last > joined) {
      call(begin, last);
      begin = -1;
    }
    if (begin < 0) begin = left;
    last = Math.max(right, left + 1);
    k++;
    // What ends before the next pixel adds nothing.
    if (k < some.length && right - left <= 1) {
      const edge = from + (last - left0) / scale;
      if (end[some[k]] <= edge) k = first(some.length, (j) => end[some[j]] > edge, k);
    }
  }
  if (begin >= 0) call(begin, last);
}

// One line of pixels a row, copied to its height, and the red marks below it as another one. `hits` are the numbers of
// the spans that a search marks, null where none is under way.
function drawBars(raster, row, axis, ratio, { y, hits, tones, isPath }) {
  const { width } = raster.canvas;
  const inset = row.computes || isPath ? 1.5 : 3.5;
  const strip = raster.cleared();
  paintCover(strip, row, axis, ratio, tones, !hits);
  if (hits) {
    const strong = Raster.colour(theme.text);
    eachStretch(row, hits, axis, ratio, width, 0, (left, right) => strip.fill(strong, left, Math.max(right, left + 2)));
  }
  const at = (down) => Math.max(Math.round((y + down) * ratio), Math.round(AXIS * ratio));
  raster.lines(strip, at(inset), at(ROW - inset));
  if (isPath || !row.critical.length) return;
  const red = Raster.colour(paint(ALARM));
  eachStretch(row, row.critical, axis, ratio, width, JOINED * ratio, (left, right) => {
    if (right - left >= LEAST_MARK * ratio) strip.fill(red, left, right);
  });
  raster.lines(strip, at(ROW - inset - 3), at(ROW - inset));
}

const MARGIN = 4; // of a label in its bar
const NARROWEST = 22; // a bar that holds any label

// Names in the bars that hold the whole of them, or of its last part.
function drawLabels(context, row, names, axis, y, inks) {
  const { from, to } = axis.view;
  let i = over(row.end, from, 0);
  const least = NARROWEST / axis.scale;
  for (let looked = 0; i < row.start.length && row.start[i] < to && looked < 4000; i++, looked++) {
    const begin = Math.max(row.start[i], from);
    const length = Math.min(row.end[i], to) - begin;
    if (length < least) continue;
    const text = whole(context, names[row.tasks[i]], length * axis.scale - 2 * MARGIN);
    if (!text) continue;
    context.fillStyle = inks[row.kind[i]];
    context.fillText(text, axis.x(begin) + MARGIN, y + ROW / 2 + 0.5);
  }
}

function whole(context, name, room) {
  if (widthOf(context, name) <= room) return name;
  const tail = name.slice(name.lastIndexOf("/") + 1);
  return tail !== name && tail && widthOf(context, tail) <= room ? tail : "";
}
