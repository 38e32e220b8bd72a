// Puts the drawings into the page. This is the last of the scripts, which are joined in the order of SCRIPT (mod.rs).

/** The number of lines listed for a moment. */
const LINES = 10;

function show(section, device, kinds, waiting, nth) {
  const part = (name) => section.querySelector(`.drawn.${name}`);
  for (const drawn of section.querySelectorAll(".drawn")) drawn.hidden = false;
  const held = new Held(device);
  const memory = new Memory(device.memory);
  const icicle = part("icicle") && new Icicle(part("icicle"), held);
  const map = part("map") && new SegmentMap(part("map"), memory, held, kinds, waiting);
  const showAt = (sums, when, isBrushing) => {
    icicle?.show(sums, when, isBrushing);
    map?.show(sums.moment, when);
  };
  if (!part("timeline")) {
    showAt(held.sums(device.explained), device.when, false);
    return { map };
  }
  /** Describes one moment; for a range, also how the lines changed over it. */
  const explain = ({ moment, allocated, ends, hash, isBrushing = false }) => {
    const sums = held.sums(moment);
    const when = moment === device.explained ? device.when : `after ${eventOf(moment)}`;
    const lines = held.lines(sums, ends?.map((end) => held.sums(end)));
    part("timeline").querySelector(".of").textContent = `The largest lines at this moment${ends ? "; changes are from begin to end of the selection" : ""}`;
    const table = part("timeline").querySelector(".lines tbody");
    table.replaceChildren();
    for (const { line, kind, bytes, blocks, begin, end } of lines.slice(0, LINES)) {
      const cells = [size(bytes), blocksOf(blocks), swatch(kind, kinds[kind]), held.names[line]];
      if (ends) cells.splice(1, 0, change(end - begin));
      row(table, cells);
    }
    const rest = [];
    const more = lines.slice(LINES);
    if (more.length) rest.push(`${size(more.reduce((sum, line) => sum + line.bytes, 0))} at ${count(more.length)} more lines`);
    const untold = held.isWhole ? 0 : allocated - sums.all;
    if (untold > 0) rest.push(`${size(untold)} in blocks too small for this page`);
    part("timeline").querySelector(".rest").textContent = rest.length ? `and ${rest.join(", ")}` : "";
    showAt(sums, when, isBrushing);
    link(`#${nth}-${hash}`);
  };
  return { timeline: new Timeline(part("timeline"), device, held, memory, explain), map };
}

/** Stores the moment in the page's address, so that it can be shared. Browsers limit how often this is possible. */
let later = null;
function link(hash) {
  clearTimeout(later);
  later = setTimeout(() => isReady && history.replaceState(null, "", hash), 200);
}
let isReady = false;

/** Shows the moment or the range in the address. */
function follow(shown) {
  const [, device, from, to] = location.hash.match(/^#(\d+)-(\d+)(?:-(\d+))?$/) || [];
  const timeline = shown[device]?.timeline;
  if (!timeline) return;
  if (to === undefined) timeline.pick(Number(from));
  else timeline.selectMoments(Number(from), Number(to));
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const sections = [...document.querySelectorAll("section.device")];
  const shown = sections.map((section, nth) => show(section, data.devices[nth], data.kinds, data.waiting, nth));
  const draw = () => shown.forEach(({ timeline, map }) => (timeline?.draw(), map?.draw()));
  shown.forEach(({ timeline }) => timeline && (timeline.draw(), timeline.panel()));
  follow(shown);
  isReady = true;
  addEventListener("hashchange", () => follow(shown));
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    draw();
  }).observe(document.body);
}

start();
