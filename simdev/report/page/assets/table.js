// Tables that sort by any column, and show so many rows that the page stays quick.

const ROWS_SHOWN = 50;

// `columns` are {title, as}, `rows` lists of cells. With `search` there is a field to choose rows by their text. Returns its
// `part` of the page and `take`, which shows other rows in the order and choice that the reader has set.
function table(name, columns, rows, { search = false, most = ROWS_SHOWN, look = () => "" } = {}) {
  const state = { rows, by: -1, down: true, wanted: "", most };
  const head = element("tr");
  const body = element("tbody");
  const more = element("button", { className: "more", type: "button" });
  const count = element("span", { className: "hint", role: "status" });

  columns.forEach((column, c) => {
    const sort = element("button", { type: "button", title: `sort by ${column.title || "name"}` }, column.title || "name");
    sort.onclick = () => {
      // Numbers fall first, texts rise.
      state.down = state.by === c ? !state.down : column.as !== "text";
      state.by = c;
      draw();
    };
    head.append(element("th", { className: column.as === "text" ? "text" : "", scope: "col" }, sort));
  });

  function chosen() {
    const wanted = state.wanted.toLowerCase();
    const kept = wanted
      ? state.rows.filter((row) => row.some((cell, c) => shown(cell, columns[c].as).toLowerCase().includes(wanted)))
      : state.rows.slice();
    if (state.by >= 0) kept.sort((a, b) => compared(a[state.by], b[state.by], state.down ? -1 : 1));
    return kept;
  }

  function draw() {
    const kept = chosen();
    [...head.children].forEach((cell, c) => {
      cell.classList.toggle("up", state.by === c && !state.down);
      cell.classList.toggle("down", state.by === c && state.down);
      cell.ariaSort = state.by !== c ? "none" : state.down ? "descending" : "ascending";
    });
    body.replaceChildren(...kept.slice(0, state.most).map((row) => line(columns, row, look(row))));
    more.hidden = kept.length <= state.most;
    more.textContent = `${(kept.length - state.most).toLocaleString("en-US")} more rows`;
    count.textContent = state.wanted ? `${kept.length.toLocaleString("en-US")} of ${state.rows.length.toLocaleString("en-US")}` : "";
  }

  more.onclick = () => { state.most *= 10; draw(); };
  draw();
  const box = element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `table: ${name}` },
    element("table", {}, element("thead", {}, head), body));
  const parts = [box, more];
  if (search) {
    const field = element("input", { type: "search", placeholder: "rows that hold …", ariaLabel: "choose rows by text" });
    field.oninput = () => { state.wanted = field.value; draw(); };
    parts.unshift(element("div", { className: "bar" }, field, count));
  }
  return {
    part: element("div", {}, ...parts),
    take(others) {
      state.rows = others;
      draw();
    },
  };
}

// Cells without a value stand last, whatever the order.
function compared(a, b, sign) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return none - other;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}

function line(columns, row, className) {
  const made = element("tr", { className });
  columns.forEach((column, c) => {
    const cell = element("td", { className: column.as === "text" ? "text" : "" });
    if (column.as === "share" && row[c] !== null) {
      const bar = element("span", { className: "share" });
      // A full bar is the whole, so that bars of several columns and tables compare.
      bar.style.width = `${60 * Math.min(Math.abs(row[c]), 1)}px`;
      cell.append(bar);
    }
    const text = shown(row[c], column.as);
    if (text.length > 40) cell.title = text; // long ones are cut
    cell.append(text);
    made.append(cell);
  });
  return made;
}

// Tables under their titles, which take others: those that stay keep their order, those that are gone go.
class Sheets {
  constructor() {
    this.part = element("div");
    this.kept = new Map();
  }

  take(sheets) {
    const now = new Map();
    for (const { title, note, columns, rows } of sheets) {
      const key = JSON.stringify([title, columns]);
      const made = this.kept.get(key) || this.made(title, columns, rows);
      made.note.textContent = note || "";
      made.note.hidden = !note;
      made.table.take(rows);
      now.set(key, made);
    }
    this.kept = now;
    this.part.replaceChildren(...[...now.values()].map((made) => made.part));
  }

  made(title, columns, rows) {
    const note = element("p", { className: "note" });
    const made = table(title, columns, rows, { search: rows.length > ROWS_SHOWN, most: 20 });
    return { note, table: made, part: section(title, note, made.part) };
  }
}
