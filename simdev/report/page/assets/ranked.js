// Many answers to one question, the best first: the results of a sweep, or plans.

class RankedPage {
  constructor(data) {
    const { columns, axes } = data;
    this.head = new Head();
    this.head.take(data);
    this.part = element("div", {}, this.head.part);
    const count = columns.length ? columns[0].values.length : 0;
    if (count) this.part.append(new Scatter(data, axes).part);
    const { order, front, apart } = data.ranking;
    this.rows(data, data.texts.front, front);
    this.rows(data, data.texts.order, order);
    this.rows(data, data.texts.apart, apart, ["status", "reason"]);
    const sheets = new Sheets();
    sheets.take(data.sheets);
    this.part.append(sheets.part);
  }

  // A table of the rows of these numbers, without columns that say nothing of them; `ahead` are the titles of those that
  // stand first.
  rows({ columns, ranking }, title, numbers, ahead = []) {
    if (!numbers.length) return;
    const said = columns.filter((column) => numbers.some((i) => column.values[i] !== null && column.values[i] !== undefined));
    const isOne = (column) => new Set(numbers.map((i) => column.values[i])).size === 1;
    // What all rows have alike stands last.
    const rank = (column) => (ahead.includes(column.title) ? -1 : numbers.length > 2 && isOne(column) ? 1 : 0);
    said.splice(1, Infinity, ...said.slice(1).sort((a, b) => rank(a) - rank(b)));
    const rows = numbers.map((i) => Object.assign(said.map((column) => column.values[i]), { number: i }));
    const best = ranking.order[0];
    const made = table(title, said, rows, { search: rows.length > 10, most: 50, look: (row) => (row.number === best ? "chosen" : "") });
    this.part.append(section(title, made.part));
  }
}
