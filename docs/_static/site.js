// Keys reach what scrolls sideways, and headings of the contents say which level they are of.
function reach() {
  for (const part of document.querySelectorAll("article pre, article table, article .table-wrapper")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll(".caption[role='heading']")) {
    caption.setAttribute("aria-level", 2);
  }
});
