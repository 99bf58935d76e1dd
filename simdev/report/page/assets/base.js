// What everything here needs: elements, numbers as people read them, the tip at the pointer.

// An element with properties; children are elements or texts, and a text is never markup.
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// A part of the page under a title of its own, which names it to who only hears the page.
function section(title, ...children) {
  const made = element("section", {}, element("h2", {}, title), ...children);
  made.ariaLabel = title;
  return made;
}

function button(text, title, call) {
  return element("button", { type: "button", title, ariaLabel: title || text, onclick: call }, text);
}

function swatch(colour) {
  const square = element("i");
  fill(square, colour);
  return square;
}

// A button that shows or hides what its colour stands for.
function toggle(name, colour, call) {
  const made = element("button", { type: "button", className: "toggle", title: "show or hide" }, swatch(colour), name);
  made.ariaPressed = "true";
  made.onclick = () => {
    made.ariaPressed = String(made.ariaPressed !== "true");
    call(made.ariaPressed === "true");
  };
  return made;
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

function digits(value, count = 4) {
  return String(Number(value.toPrecision(count)));
}

function scaled(value, scales, smallest) {
  for (const [unit, scale] of scales) {
    if (Math.abs(value) >= scale) return `${digits(value / scale)} ${unit}`;
  }
  return `${digits(value)} ${smallest}`;
}

const TIMES = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]];
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

const RATES = [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]];

const FORMATS = {
  text: String,
  count: (value) => value.toLocaleString("en-US"),
  number: (value) => (Number.isInteger(value) || Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en-US") : digits(value, 5)),
  time: (ps) => scaled(ps, TIMES, "ps"),
  bytes: (size) => {
    const [unit, scale] = SIZES.find(([, least]) => Math.abs(size) >= least) || ["B", 1];
    return `${(size / scale).toFixed(scale > 1 ? 2 : 0)} ${unit}`;
  },
  rate: (rate) => scaled(rate, RATES, "B/s"),
  share: (part) => `${(100 * part).toFixed(1)}%`,
  limit: (size) => FORMATS.bytes(size),
  change: (part) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)}%`,
};

function shown(value, kind) {
  if (value === null || value === undefined) return kind === "limit" ? "unlimited" : "–";
  return typeof value === "number" ? (FORMATS[kind] || String)(value) : String(value);
}

const tip = {
  box: document.getElementById("tip"),
  show(event, text) {
    this.box.textContent = text;
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 16;
    this.box.style.left = `${Math.max(left, 4)}px`;
    this.box.style.top = `${Math.max(top, 4)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

// At most one call a frame, however often it is asked for.
function perFrame(call) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      call();
    });
  };
}
