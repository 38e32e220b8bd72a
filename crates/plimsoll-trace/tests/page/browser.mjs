// Opens a page that `--html` of `plimsoll explain` or `plimsoll diff` wrote in Chromium, and uses it as a person would.
// Every step is checked, and any error in the browser's console is a failure. If a folder is given, screenshots are
// saved there for inspection.
//
//   node --experimental-websocket crates/plimsoll-trace/tests/page/browser.mjs PAGE.html [FOLDER]
//
// Prints "skipped" and exits with 0 if there is no Chromium; exits with 1 if a check fails.
import { join } from "node:path";
import { launch } from "./chromium.mjs";

const [page, folder] = process.argv.slice(2);
const tab = await launch();
if (!tab) {
  console.log("skipped: no Chromium");
  process.exit(0);
}

const check = (is, what) => {
  console.log(`${is ? "ok  " : "FAIL"} ${what}`);
  if (!is) process.exitCode = 1;
};
const picture = (name, whole = true) => folder && tab.picture(join(folder, `${name}.png`), whole);
const what = () => tab.text(".what");
const linked = async () => {
  await tab.ask("new Promise((done) => setTimeout(() => done(0), 300))"); // the hash is updated after a short delay
  return tab.ask("location.hash");
};
/** The contents of each part of the page for the moment. */
const shown = () =>
  tab.ask(`({
    what: document.querySelector(".what").textContent,
    kinds: document.querySelector(".kinds").textContent,
    lines: document.querySelector(".lines").textContent,
    icicle: document.querySelector(".boxes").innerHTML,
    map: document.querySelector(".map canvas").toDataURL(),
    mapAt: document.querySelector(".map .at").textContent,
  })`);

/** Checks the contents that need no script, and that they fit. */
async function readable() {
  check((await tab.text(".verdict")).length > 20, "the verdict is there");
  const headings = await tab.ask(`[...document.querySelectorAll("#device-0 > section")].map((part) => part.id.split("-").pop())`);
  const order = ["bytes", "time", "held", "cached", "steps", "settings", "quality"];
  check(headings.join() === order.filter((name) => headings.includes(name)).join(), `sections in order: ${headings.join(", ")}`);
  const leads = await tab.ask(`[...document.querySelectorAll("nav a")].every((link) => document.querySelector(link.getAttribute("href")))`);
  check(leads, "every link of the contents leads somewhere");
  check(/^plimsoll (explain|diff) .* --html /.test(await tab.text("#reproduce pre")), "it says how to make it again");
  const ids = await tab.ask(`[...document.querySelectorAll("[id]")].map(({ id }) => id)`);
  check(new Set(ids).size === ids.length, `${ids.length} ids, each once`);
  if (headings.includes("settings")) {
    const rows = await tab.ask(`document.querySelectorAll(".settings tbody tr").length`);
    check(rows >= 4, `other settings: ${rows} rows`);
  }
  const stairs = await tab.ask(`[...document.querySelectorAll(".stairs path")].length`);
  if (stairs) check(await tab.ask(`document.querySelector(".stairs svg").getBoundingClientRect().height > 50`), `a staircase of ${stairs} parts`);
}

/** Checks the first screen, without scrolling: the verdict, the advice, the largest owners. */
async function firstScreen(screen) {
  await tab.ask("scrollTo(0, 0)");
  const parts = await tab.ask(`[".verdict", ".help", ".owners"].map((name) => {
    const part = document.querySelector(name);
    return [name, part && part.getBoundingClientRect().bottom];
  })`);
  const tall = await tab.ask("innerHeight");
  for (const [name, bottom] of parts) {
    if (bottom === null) console.log(`     no ${name}`);
    else check(bottom <= tall, `${screen}: ${name} ends at ${Math.round(bottom)} of ${tall}`);
  }
}

/** Selects a range at the very bottom of the window. Its figures must be visible when the mouse is released. */
async function inSight(screen) {
  if (!(await tab.ask(`document.querySelector(".plot") !== null`))) return;
  const plot = await tab.ask(`(() => { const plot = document.querySelector(".plot"); plot.scrollIntoView({ block: "end" });
    const { x, y, width } = plot.getBoundingClientRect(); return { x, y, width }; })()`);
  await tab.drag(plot.x + 58 + 0.3 * (plot.width - 58), plot.x + 58 + 0.6 * (plot.width - 58), plot.y + 100, 10);
  const [parts, tall] = await tab.ask(`[[".plot", ".what", ".kinds tr", ".lines tr"].map((name) => {
    const part = document.querySelector(name);
    const { top, bottom } = part ? part.getBoundingClientRect() : { top: 0, bottom: 0 };
    return [name, top, bottom];
  }), innerHeight]`);
  const panel = await tab.ask(`(() => { const { top, bottom } = document.querySelector(".moment").getBoundingClientRect(); return [top, bottom]; })()`);
  for (const [name, top, bottom] of parts) {
    const isSeen = top >= 0 && bottom <= tall && (name === ".plot" || bottom <= panel[1] + 1);
    check(isSeen, `${screen}: ${name} of the selection is in sight: ${Math.round(top)} to ${Math.round(bottom)} of ${tall}`);
  }
}

/** The colour next to a verdict shows whether something is wrong. */
async function coloured() {
  const wrong = await tab.ask(`[...document.querySelectorAll("section.device > .verdict")].filter((verdict) =>
    /^(out of memory|LEAK)/.test(verdict.textContent) !== verdict.matches(".failed")).map((verdict) => verdict.textContent)`);
  check(wrong.length === 0, `verdicts have their colour ${wrong.join(" | ")}`);
}

/** Checks the beginning of a page about several recordings: drawings on one scale, tables that add up, links to the sections. */
async function head() {
  const panels = await tab.ask(`[...document.querySelectorAll(".panels svg")].map((panel) => panel.getBoundingClientRect().height)`);
  check(panels.every((tall) => tall > 100), `${panels.length} recordings side by side`);
  const leads = await tab.ask(`[...document.querySelectorAll(".head a")].map((link) => document.querySelector(link.getAttribute("href"))?.matches("section.device") === true)`);
  check(leads.length > 0 && leads.every(Boolean), `${leads.length} links lead to sections`);
  const sums = await tab.ask(`[...document.querySelectorAll(".changes tfoot")].map((foot) => [
    Number(foot.querySelector("data").value),
    [...foot.parentElement.querySelectorAll("tbody tr > :first-child data")].reduce((sum, row) => sum + Number(row.value), 0),
  ])`);
  for (const [said, sum] of sums) check(said === sum, `changes sum to ${sum} bytes`);
  const ranks = await tab.ask(`document.querySelectorAll(".ranks tbody tr").length`);
  check(sums.length > 0 || ranks > 1, `${sums.length} tables of changes, ${ranks} rows of ranks`);
}

/** Every section has its own drawings: a click into the last one changes no other. */
async function last() {
  const words = () => tab.ask(`[...document.querySelectorAll(".what")].map((what) => what.textContent)`);
  const before = await words();
  if (before.length < 2) return;
  const nth = await tab.ask(`[...document.querySelectorAll("section.device")].findLastIndex((section) => section.querySelector(".plot"))`);
  const plot = await tab.box(`#device-${nth} .plot`);
  await tab.drag(plot.x + 58 + 0.2 * (plot.width - 58), plot.x + plot.width - 4, plot.y + 100, 10);
  const after = await words();
  const changed = after.filter((what, place) => what !== before[place]).length;
  check(changed === 1 && /selection/.test(after.at(-1)), `a range of section ${nth} is explained there: ${after.at(-1)}`);
  check((await linked()).startsWith(`#${nth}-`), "and the address tells which section");
}

/** Selects moments by click, by key and by link. */
async function moments(plot, at) {
  const first = await what();
  check(/live.*reserved/.test(first), `a moment is explained at once: ${first}`);
  await tab.click(at(0.3), plot.y + 100);
  const events = await tab.ask(`JSON.parse(document.getElementById("data").textContent).devices[0].curve.events`);
  check(events < 20 || (await what()) !== first, `a click explains a moment: ${await what()}`);
  const moment = async () => Number((await linked()).match(/^#0-(\d+)$/)?.[1]);
  const there = await moment();
  check(there >= 0, `the address tells the moment: ${there}`);
  await tab.ask(`document.querySelector(".plot").focus()`);
  await tab.press(".");
  check((await moment()) === Math.min(there + 1, events), "a full stop goes to the next event");
  await tab.press(",");
  check((await moment()) === there, "a comma goes back");
  return { hash: await linked(), told: await what() };
}

/** Drags a range with the mouse. Every part of the page must follow, during the drag and after it. */
async function brush(plot, at) {
  const before = await shown();
  let during;
  await tab.drag(at(0.4), at(0.7), plot.y + 100, 30, async () => {
    await tab.frame();
    during = await shown();
  });
  const after = await shown();
  check(/selection/.test(after.what), `dragging explains a range: ${after.what}`);
  check(/[+−]\d|unchanged/.test(after.kinds), "with what changed over it, by category");
  check(/[+−]\d|unchanged/.test(after.lines), "and by line");
  const comes = await tab.ask(`words(JSON.parse(document.getElementById("data").textContent).devices[0].held.blocks.from).filter((from) => from > 0).length`);
  for (const part of comes ? ["what", "lines", "icicle", "map", "mapAt"] : ["what"]) {
    check(before[part] !== after[part], `brushing changes ${part}`);
  }
  check(during.what !== before.what, "it follows while the mouse is down");
  const held = after.what.match(/: (.*?) live/)[1];
  const isWhole = await tab.ask(`JSON.parse(document.getElementById("data").textContent).devices[0].held.blocks.leftOut === 0`);
  const root = await tab.text(".boxes > :first-child");
  if (isWhole) check(root.endsWith(held), `the stacks sum to live memory: ${root}`);
  const hash = await linked();
  check(/^#0-\d+-\d+$/.test(hash), `the address tells the range: ${hash}`);
  return { hash, told: after.what };
}

/** Measures the time between frames while the mouse brushes, and the script's work for each. */
async function fluid(plot, at) {
  await tab.ask(`(() => { window.times = []; window.spent = []; window.watching = true; window.own = requestAnimationFrame;
    window.requestAnimationFrame = (work) => own((now) => { const begin = performance.now(); work(now); spent.push(performance.now() - begin); });
    const watch = (now) => { times.push(now); if (watching) own(watch); }; own(watch); })()`);
  await tab.drag(at(0.05), at(0.95), plot.y + 100, 150);
  const { times, spent } = await tab.ask("(watching = false, window.requestAnimationFrame = own, { times, spent })");
  const told = (durations) => {
    const sorted = durations.sort((a, b) => a - b);
    const [middle, most] = [0.5, 0.95].map((part) => sorted[Math.floor((sorted.length - 1) * part)]);
    return { middle, text: `${middle.toFixed(1)} ms, 19 of 20 within ${most.toFixed(1)} ms` };
  };
  const [apart, work] = [told(times.slice(1).map((time, nth) => time - times[nth])), told(spent)];
  // Allow some slack: the machine may be busy, and draws without a graphics card.
  check(work.middle < 33, `brushing: the script works ${work.text} for a picture`);
  check(apart.middle < 50, `brushing: pictures are apart ${apart.text}`);
}

async function zoomed() {
  await tab.ask(`document.querySelector("[data-do=zoom]").click()`);
  await picture("zoomed", false);
  await tab.ask(`document.querySelector(".plot").focus()`);
  await tab.press("ArrowRight");
  check(!/selection/.test(await what()), "an arrow key goes on to a moment");
  const slowest = await tab.ask(`(() => { const begin = performance.now(); for (let n = 0; n < 20; n++)
    document.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", { key: n % 2 ? "-" : "+" }));
    return (performance.now() - begin) / 20; })()`);
  check(slowest < 50, `a zoom is drawn in ${slowest.toFixed(1)} ms`);
  await tab.ask(`document.querySelector("[data-do=axis]").click()`);
  await picture("other-axis", false);
  await tab.ask(`document.querySelector("[data-do=whole]").click()`);
}

async function searched() {
  const input = await tab.box(".icicle input");
  await tab.click(input.x + 20, input.y + 10);
  await tab.type(".py");
  const told = await tab.text(".icicle output");
  check(/\d boxes/.test(told), `a search tells what it found: ${told}`);
  const found = await tab.ask(`document.querySelectorAll(".boxes > .found").length`);
  check(found > 0 || /^0 bytes/.test(told), `and marks ${found} boxes`);
  await tab.box(".boxes");
  await picture("searched", false);
  await tab.ask(`document.querySelector(".icicle input").select()`);
  await tab.press("Backspace");
}

async function map() {
  const cells = await tab.box(".map canvas");
  await tab.mouse("mouseMoved", cells.x + 12, cells.y + 7, 0);
  const told = await tab.text(".hover");
  check(/pool/.test(told), `a cell tells: ${told}`);
  await picture("map", false);
}

try {
  await tab.look(1280, 900, "light");
  const begin = Date.now();
  await tab.open(page);
  console.log(`loaded in ${Date.now() - begin} ms`);
  await readable();
  await coloured();
  if (await tab.ask(`document.querySelector(".head") !== null`)) await head();
  check(await tab.ask(`document.documentElement.scrollWidth <= innerWidth`), "nothing is wider than the window");
  await picture("wide-light");
  if (await tab.ask(`document.querySelector(".plot") !== null`)) {
    const plot = await tab.box(".plot");
    const at = (share) => plot.x + 58 + share * (plot.width - 58);
    const links = [await moments(plot, at), await brush(plot, at)];
    await zoomed();
    await tab.box(".plot");
    await fluid(plot, at);
    await searched();
    await map();
    await last();
    for (const { hash, told } of links) {
      await tab.open(page, hash);
      check((await what()) === told, `${hash} leads where it was made`);
    }
  }
  for (const [width, height] of [[1440, 900], [390, 844]]) {
    await tab.look(width, height, "light");
    await tab.open(page);
    const screen = `${width} x ${height}`;
    if (await tab.ask(`document.querySelector(".summary") !== null`)) await firstScreen(screen);
    await picture(`first-screen-${width}`, false);
    await inSight(screen);
    await picture(`brushed-${width}`, false);
  }
  await tab.look(1280, 900, "dark");
  await picture("wide-dark");
  await tab.look(390, 844, "light");
  const wide = await tab.ask(`document.documentElement.scrollWidth`);
  check(wide <= 390, `nothing is wider than a phone: ${wide} of 390`);
  await picture("phone-light");
  await tab.look(390, 844, "dark");
  await picture("phone-dark");
  await tab.look(800, 1100, "dark", "print");
  await picture("print");
  if (folder) await tab.pdf(join(folder, "print.pdf"));
  check(tab.troubles.length === 0, `no error in the console, no request ${tab.troubles.join("\n")}`);
} finally {
  await tab.close();
}
