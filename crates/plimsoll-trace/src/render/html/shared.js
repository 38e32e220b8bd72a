"use strict";
// Draws the contents of the data element, one device at a time. It writes text, never HTML. A moment is a number: 0 is
// before the first event, n is after the nth. Bytes are counted in units (grains) of 512. Arrays are little-endian,
// like every machine that runs a browser.

const GRAIN = 512;
const PASSES = ["", "forward", "backward", "optimizer"];

function octets(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}
const words = (text) => new Uint32Array(octets(text).buffer);
const floats = (text) => new Float64Array(octets(text).buffer);

function size(bytes) {
  if (bytes <= 1024) return `${bytes} bytes`;
  const [unit, name] = bytes <= 2 ** 20 ? [2 ** 10, "KiB"] : bytes <= 2 ** 30 ? [2 ** 20, "MiB"] : [2 ** 30, "GiB"];
  return `${(bytes / unit).toFixed(2)} ${name}`;
}
const grouped = new Intl.NumberFormat("en-US");
const count = (number) => grouped.format(number);
const percent = (part, whole) => `${whole ? ((100 * part) / whole).toFixed(1) : "0.0"} %`;

const blocksOf = (number) => `${count(number)} ${number === 1 ? "block" : "blocks"}`;
const change = (bytes) => (bytes === 0 ? "unchanged" : `${bytes < 0 ? "−" : "+"}${size(Math.abs(bytes))}`);

const eventOf = (moment) => (moment ? `event ${count(moment - 1)}` : "before the first event");

function duration(us) {
  return us < 1e3 ? `${us.toFixed(0)} µs` : us < 1e6 ? `${(us / 1e3).toFixed(2)} ms` : `${(us / 1e6).toFixed(3)} s`;
}

/** The last index of an ascending list whose number is at most this one; 0 if there is none. */
function placeOf(length, at, number) {
  let [low, high] = [0, length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (at(middle) <= number) low = middle;
    else high = middle - 1;
  }
  return Math.max(low, 0);
}

/** The smallest round step that divides a span into at most about this many parts. */
function step(span, parts, base) {
  const rough = span / parts || 1;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  return power * steps.find((times) => power * times >= rough);
}

function element(name, parent, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function row(parent, cells) {
  const made = element("tr", parent);
  for (const cell of cells) element("td", made).append(cell);
}

function swatch(kind, name) {
  const words = document.createElement("span");
  element("i", words).style.cssText = `display:inline-block;width:.8em;height:.8em;margin-right:.35em;background:var(--kind-${kind})`;
  words.append(name);
  return words;
}

/** Runs the function that was passed last, when the next frame is drawn. */
function oncePerFrame() {
  let wanted = null;
  return (work) => {
    if (wanted === null) requestAnimationFrame(() => (wanted(), (wanted = null)));
    wanted = work;
  };
}

/** The current colours: light, dark or print. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

/** Sizes a canvas to its place on the screen. Drawing uses CSS pixels. */
function surface(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(tall * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height: tall };
}
