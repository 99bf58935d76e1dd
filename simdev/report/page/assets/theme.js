// Colours: those of the page stand in its style, for light and for dark; those of what is drawn are the ones of all other
// pictures (ALARM, SERIES, COLOURS, which stand before this script), made lighter where a dark ground would swallow them.

const DARK = matchMedia("(prefers-color-scheme: dark)");
const LEAST_CONTRAST = 3; // of what is no text, as WCAG 2.2 asks

const theme = {};
const redrawn = new Set(); // calls that draw all pictures anew, in the colours that now count

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "dark-ground", "text", "grey", "line", "grid", "soft"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.shades = null;
}
readTheme();

DARK.addEventListener("change", () => {
  readTheme();
  for (const call of redrawn) call();
});

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mixed(hex, other, part) {
  const to = channels(other);
  return `#${channels(hex).map((value, k) => Math.round(to[k] + (value - to[k]) * part).toString(16).padStart(2, "0")).join("")}`;
}

// As WCAG defines it, from 0 to 1.
function luminance(hex) {
  const [red, green, blue] = channels(hex).map((value) => {
    const part = value / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(hex, other) {
  const [a, b] = [luminance(hex), luminance(other)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

// The colour in which a colour of the data is drawn: itself on white; on dark, light enough to be seen.
function paint(hex, dark = DARK.matches) {
  if (!dark) return hex;
  const known = (paint.known ||= new Map());
  if (!known.has(hex)) {
    let part = 1;
    while (part > 0 && contrast(mixed(hex, "#ffffff", part), theme["dark-ground"]) < LEAST_CONTRAST) part -= 0.1;
    known.set(hex, mixed(hex, "#ffffff", Math.max(part, 0)));
  }
  return known.get(hex);
}

// Fill a part of the page with a colour of the data; the style chooses between the two.
function fill(part, hex) {
  part.classList.add("filled");
  part.style.setProperty("--light", hex);
  part.style.setProperty("--dark", paint(hex, true));
}

// Black or white, whichever is read better upon a colour.
function ink(hex) {
  return contrast("#ffffff", hex) >= contrast("#111111", hex) ? "#ffffff" : "#111111";
}

// From the ground to a strong blue, by per cent.
function shades() {
  const strong = DARK.matches ? "#8cc8ff" : "#044680";
  theme.shades ||= Array.from({ length: 101 }, (_, percent) => mixed(strong, theme.ground, 0.08 + (0.92 * percent) / 100));
  return theme.shades;
}
