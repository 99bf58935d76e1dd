// Draws the page of the data that stand in it.

const PAGES = { run: StepPage, compare: ComparePage, results: RankedPage, plans: RankedPage, search: SearchPage };

// Large data are packed, else the page could not be mailed.
async function unpacked(block) {
  if (block.type === "application/json") return JSON.parse(block.textContent);
  const bytes = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

unpacked(document.getElementById("data")).then((data) => {
  document.querySelector("main").append(new PAGES[data.page](data).part);
});
