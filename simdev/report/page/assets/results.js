// The page of a sweep's results.

class ResultsPage {
  constructor(data) {
    const { columns, axes } = data;
    this.head = new Head();
    this.head.take(data);
    this.part = element("div", {}, this.head.part);
    const count = columns.length ? columns[0].values.length : 0;
    if (count) this.part.append(new Scatter(columns, axes).part);
    const rows = Array.from({ length: count }, (_, i) => columns.map((column) => column.values[i]));
    this.part.append(section("All rows", table("all rows", columns, rows, { search: true, most: 100 }).part));
  }
}
