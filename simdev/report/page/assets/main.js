// Puts the page together.

const main = document.querySelector("main");
document.querySelector("h1").textContent = DATA.title;
document.getElementById("headline").classList.toggle("bad", !DATA.fits);
const drawn = [];

function add(...parts) {
  main.append(...parts);
}

function chart(made) {
  drawn.push(made);
  add(made.part);
}

if (DATA.facts.length) {
  add(element("div", { className: "facts" },
    ...DATA.facts.map(([name, value]) => element("div", {}, element("span", {}, name), element("b", {}, value)))));
}
for (const note of DATA.notes) add(element("p", { className: DATA.fits ? "note" : "note warning" }, note));

if (DATA.page === "run") {
  const told = DATA.timeline;
  const view = new View(told.step);
  add(element("section", {}, element("h2", {}, "Critical path"), blameBar(DATA.blame, told.step || 1)));
  chart(new Gantt(told, view, "Gantt chart"));
  if (told.memory.some((one) => one.peak)) chart(new Memory(told, view));
  if (told.load.length) chart(new Load(told, view));
  add(...DATA.sheets.map(sheet));
} else if (DATA.page === "compare") {
  const view = new View(Math.max(...DATA.timelines.map((told) => told.step)));
  add(...DATA.sheets.slice(0, 2).map(sheet));
  DATA.timelines.forEach((told, k) => {
    const letter = "AB"[k];
    chart(new Gantt(told, view, `${letter}: ${DATA.names[k]}. ${DATA.headlines[k]}`));
    if (told.memory.some((one) => one.peak)) chart(new Memory(told, view, `${letter}: memory over time`));
  });
  add(...DATA.sheets.slice(2).map(sheet));
} else {
  const { columns, axes } = DATA;
  const count = columns.length ? columns[0].values.length : 0;
  if (count) chart(new Scatter(columns, axes));
  const rows = Array.from({ length: count }, (_, i) => columns.map((column) => column.values[i]));
  add(element("section", {}, element("h2", {}, "All rows"), table(columns, rows, { search: true, most: 100 })));
}
for (const made of drawn) made.redraw();
