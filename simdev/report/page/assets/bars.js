// The bars of a row in pixels. What is narrower than a pixel is drawn once a pixel and then skipped by search, so a frame
// costs what is on the screen, not what is in the trace.

const ROW = 20;
const JOINED = 6; // CSS pixels: red marks that lie closer are one, else many short ops look like a ladder
const LEAST_MARK = 4; // and what is shorter is left to the row of the critical path

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
  for (const { first: at, count, name } of [...folds].reverse()) {
    const members = rows.slice(at, at + count);
    const row = { ...together(members), name, device: members[0].device, computes: members[0].computes, folds: members, open: open.has(name) };
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

// Calls with the left and right pixel (of the screen) and the number of each span in sight, and of what is too narrow
// with the first of each pixel.
function eachSpan({ start, end }, axis, ratio, width, call) {
  const { from, to } = axis.view;
  const left0 = Math.round(axis.left * ratio);
  const scale = (width - left0) / (to - from);
  const count = start.length;
  let i = over(end, from, 0);
  while (i < count && start[i] <= to) {
    const left = Math.floor(left0 + (Math.max(start[i], from) - from) * scale);
    const right = Math.min(Math.round(left0 + (Math.min(end[i], to) - from) * scale), width);
    if (right - left > 1) {
      call(left, right - left > 4 ? right - 1 : right, i);
      i++;
      continue;
    }
    if (left < width) call(left, left + 1, i);
    const edge = from + (left + 1 - left0) / scale;
    i = i + 1 < count && end[i + 1] > edge ? i + 1 : over(end, edge, i + 1);
  }
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
function drawBars(raster, row, axis, ratio, { y, hits, colours, isPath }) {
  const { width } = raster.canvas;
  const inset = row.computes || isPath ? 1.5 : 3.5;
  const strip = raster.cleared();
  eachSpan(row, axis, ratio, width, (left, right, i) => strip.fill(colours[row.kind[i]], left, right));
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
