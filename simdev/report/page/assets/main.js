// Draws the page of the data that stand in it.

// Large data are packed, else the page could not be mailed.
async function unpacked(block) {
  if (block.type === "application/json") return JSON.parse(block.textContent);
  const bytes = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

unpacked(document.getElementById("data"))
  .then((data) => document.querySelector("main").append(new PAGES[data.page](data).part))
  .catch((error) => {
    // A reader would see an empty page: browsers before 2023 cannot unpack, for one.
    const text = `This page cannot be drawn here (${error}); a newer browser may draw it.`;
    document.querySelector("main").append(element("p", { className: "warning" }, text));
    throw error;
  });
