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
    const isOne = (column) => new Set(column.values.filter((value) => value !== null)).size === 1;
    // What all rows have alike stands last.
    const rank = (column) => (ahead.includes(column.title) ? -1 : column.values.length > 2 && isOne(column) ? 1 : 0);
    const named = isOne(said[0]) ? 0 : 1; // the first column names the rows where it differs
    said.splice(named, Infinity, ...said.slice(named).sort((a, b) => rank(a) - rank(b)));
    const rows = numbers.map((i) => Object.assign(said.map((column) => column.values[i]), { number: i }));
    const best = ranking.order[0];
    const made = table(title, said, rows, { search: rows.length > 10, most: 50, look: (row) => (row.number === best ? "chosen" : "") });
    this.part.append(section(title, made.part));
  }
}
