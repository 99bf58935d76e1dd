// Draws the page of the data that stand in it.

const PAGES = { run: StepPage, compare: ComparePage, results: ResultsPage };
const DATA = JSON.parse(document.getElementById("data").textContent);
document.querySelector("main").append(new PAGES[DATA.page](DATA).part);
