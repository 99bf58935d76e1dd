// What the tasks of a trace wait for, and which of them hold a text.

class Tasks {
  // `timeline` is a timeline of the data.
  constructor(timeline) {
    this.names = timeline.tasks.name;
    this.start = timeline.tasks.start;
    this.timeline = timeline;
  }

  // The tasks that a task waits for, and those that wait for it; null where the data do not tell.
  around(task) {
    const before = this.timeline.before;
    if (!before) return null;
    if (!this.from) this.index(before);
    return { before: before.ids.slice(this.from[task], this.from[task + 1]), after: this.after.get(task) || [] };
  }

  index({ count, ids }) {
    this.from = new Int32Array(count.length + 1);
    this.after = new Map();
    for (let i = 0; i < count.length; i++) {
      this.from[i + 1] = this.from[i] + count[i];
      for (let k = this.from[i]; k < this.from[i + 1]; k++) {
        const list = this.after.get(ids[k]);
        if (list) list.push(i);
        else this.after.set(ids[k], [i]);
      }
    }
  }

  // By task whether its name holds a text, and those that do in the order of time.
  holding(text) {
    this.lower ||= this.names.map((name) => name.toLowerCase());
    const holds = this.lower.map((name) => name.includes(text));
    return { holds, list: indices(holds).sort((a, b) => this.start[a] - this.start[b]) };
  }

  // What is said of a span of a row.
  text({ row, i, task }) {
    const { tasks, devices, kinds } = this.timeline;
    const [start, end] = [row.start[i], row.end[i]];
    const [source, destination, bytes] = [tasks.source[task], tasks.destination[task], tasks.bytes[task]];
    const lines = [this.names[task], `${kinds[row.kind[i]]}, ${FORMATS.time(end - start)}`,
      `from ${FORMATS.time(start)} to ${FORMATS.time(end)}`];
    if (source !== destination) lines.push(`${devices[source]} → ${devices[destination]}`);
    if (bytes) lines.push(`${FORMATS.bytes(bytes)}${end > start ? `, ${FORMATS.bytes((bytes * 1e12) / (end - start))}/s` : ""}`);
    if (row.critical.includes(i)) lines.push("on the critical path");
    return lines;
  }
}

function indices(marks) {
  const kept = [];
  for (let i = 0; i < marks.length; i++) if (marks[i]) kept.push(i);
  return kept;
}
