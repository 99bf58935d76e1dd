// Tables that sort by any column, and show so many rows that the page stays quick.

const ROWS_SHOWN = 50;

// `columns` are {title, as}, `rows` lists of cells. With `search` there is a field to choose rows by their text.
function table(columns, rows, { search = false, most = ROWS_SHOWN } = {}) {
  const state = { by: -1, down: true, wanted: "", most };
  const head = element("tr");
  const body = element("tbody");
  const more = element("button", { className: "more", type: "button" });
  const count = element("span", { className: "hint" });
  const largest = columns.map((column, c) =>
    column.as === "share" ? rows.reduce((most, row) => Math.max(most, Math.abs(row[c] || 0)), 0) : 0);

  columns.forEach((column, c) => {
    const cell = element("th", { className: column.as === "text" ? "text" : "", tabIndex: 0 }, column.title);
    cell.onclick = () => {
      // Numbers fall first, texts rise.
      state.down = state.by === c ? !state.down : column.as !== "text";
      state.by = c;
      draw();
    };
    cell.onkeydown = (event) => { if (event.key === "Enter") cell.onclick(); };
    head.append(cell);
  });

  function chosen() {
    const wanted = state.wanted.toLowerCase();
    const found = wanted
      ? rows.filter((row) => row.some((cell, c) => shown(cell, columns[c].as).toLowerCase().includes(wanted)))
      : rows.slice();
    if (state.by >= 0) found.sort((a, b) => compared(a[state.by], b[state.by], state.down ? -1 : 1));
    return found;
  }

  function draw() {
    const found = chosen();
    [...head.children].forEach((cell, c) => {
      cell.classList.toggle("up", state.by === c && !state.down);
      cell.classList.toggle("down", state.by === c && state.down);
      cell.ariaSort = state.by !== c ? "none" : state.down ? "descending" : "ascending";
    });
    body.replaceChildren(...found.slice(0, state.most).map((row) => line(columns, row, largest)));
    more.hidden = found.length <= state.most;
    more.textContent = `${(found.length - state.most).toLocaleString("en-US")} more rows`;
    count.textContent = state.wanted ? `${found.length.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")}` : "";
  }

  more.onclick = () => { state.most *= 10; draw(); };
  draw();
  const parts = [element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), body)), more];
  if (search) {
    const field = element("input", { type: "search", placeholder: "rows that hold …", ariaLabel: "choose rows by text" });
    field.oninput = () => { state.wanted = field.value; draw(); };
    parts.unshift(element("div", { className: "bar" }, field, count));
  }
  return element("div", {}, ...parts);
}

// Cells without a value stand last, whatever the order.
function compared(a, b, sign) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return none - other;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}

function line(columns, row, largest) {
  const made = element("tr");
  columns.forEach((column, c) => {
    const cell = element("td", { className: column.as === "text" ? "text" : "" });
    if (column.as === "share" && row[c] !== null && largest[c] > 0) {
      const bar = element("span", { className: "share" });
      bar.style.width = `${(60 * Math.abs(row[c])) / largest[c]}px`;
      cell.append(bar);
    }
    const text = shown(row[c], column.as);
    if (text.length > 40) cell.title = text; // long ones are cut
    cell.append(text);
    made.append(cell);
  });
  return made;
}

function sheet(told) {
  const parts = [element("h2", {}, told.title)];
  if (told.note) parts.push(element("p", { className: "note" }, told.note));
  return element("section", {}, ...parts, table(told.columns, told.rows, { search: told.rows.length > ROWS_SHOWN, most: 20 }));
}
