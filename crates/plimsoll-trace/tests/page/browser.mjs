// Opens a page that `plimsoll explain --html` wrote in Chromium and uses it as a person would: every step is
// checked, and any error in the browser's console fails. Pictures, where a folder is given, are to be looked at.
//
//   node --experimental-websocket crates/plimsoll-trace/tests/page/browser.mjs PAGE.html [FOLDER]
//
// Says "skipped" and ends well where there is no Chromium.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const [page, folder] = process.argv.slice(2);
const browser = process.env.CHROMIUM || "chromium";
if (spawnSync(browser, ["--version"]).status !== 0) {
  console.log(`skipped: no ${browser}`);
  process.exit(0);
}

const profile = mkdtempSync(join(tmpdir(), "plimsoll-page-"));
const options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${profile}`];
const running = spawn(browser, [...options, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
const address = await new Promise((found) => {
  let said = "";
  running.stderr.on("data", (text) => {
    said += text;
    const match = said.match(/ws:\/\/(\S+?)\/devtools/);
    if (match) found(match[1]);
  });
});
const tabs = await (await fetch(`http://${address}/json/list`)).json();
const socket = new WebSocket(tabs.find((tab) => tab.type === "page").webSocketDebuggerUrl);
await new Promise((open) => (socket.onopen = open));

const [waiting, troubles] = [new Map(), []];
let last = 0;
let loaded = () => {};
socket.onmessage = ({ data }) => {
  const { id, result, error, method, params } = JSON.parse(data);
  if (id) waiting.get(id)(error ? Promise.reject(new Error(error.message)) : result);
  if (method === "Page.loadEventFired") loaded();
  if (method === "Runtime.exceptionThrown") troubles.push(params.exceptionDetails.exception?.description);
  if (method === "Log.entryAdded" && params.entry.level !== "info") troubles.push(params.entry.text);
  if (method === "Runtime.consoleAPICalled") troubles.push(JSON.stringify(params.args));
  if (method === "Network.requestWillBeSent" && !/^(file|data):/.test(params.request.url)) troubles.push(params.request.url);
};
const call = (method, params = {}) =>
  new Promise((done) => {
    waiting.set(++last, done);
    socket.send(JSON.stringify({ id: last, method, params }));
  });
const ask = async (expression) => {
  const { result, exceptionDetails } = await call("Runtime.evaluate", { expression, returnByValue: true });
  if (exceptionDetails) troubles.push(exceptionDetails.exception?.description);
  return result.value;
};
const open = async (hash = "") => {
  const ready = new Promise((done) => (loaded = done));
  await call("Page.navigate", { url: "about:blank" });
  await ready;
  const there = new Promise((done) => (loaded = done));
  await call("Page.navigate", { url: `file://${resolve(page)}${hash}` });
  await there;
};
const look = async (width, height, scheme) => {
  await call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
  await call("Emulation.setEmulatedMedia", { media: "screen", features: [{ name: "prefers-color-scheme", value: scheme }] });
};
const picture = async (name, whole = true) => {
  if (!folder) return;
  const { data } = await call("Page.captureScreenshot", { captureBeyondViewport: whole });
  writeFileSync(join(folder, `${name}.png`), Buffer.from(data, "base64"));
};
const mouse = (type, x, y, buttons) =>
  call("Input.dispatchMouseEvent", { type, x, y, button: type === "mouseMoved" ? "none" : "left", buttons, clickCount: 1 });
const box = (selector) =>
  ask(`(() => { const at = document.querySelector(${JSON.stringify(selector)}); at.scrollIntoView({ block: "center" });
    const { x, y, width, height } = at.getBoundingClientRect(); return { x, y, width, height }; })()`);
const press = async (key) => {
  for (const type of ["keyDown", "keyUp"]) await call("Input.dispatchKeyEvent", { type, key, text: key.length === 1 ? key : undefined });
};
const check = (is, what) => {
  console.log(`${is ? "ok  " : "FAIL"} ${what}`);
  if (!is) process.exitCode = 1;
};
const what = () => ask(`document.querySelector(".what").textContent`);

for (const domain of ["Page", "Runtime", "Log", "Network"]) await call(`${domain}.enable`);
try {
  await look(1280, 900, "light");
  const begin = Date.now();
  await open();
  console.log(`loaded in ${Date.now() - begin} ms`);
  check(await ask(`document.querySelector(".verdict").textContent.length > 20`), "the verdict is there");
  check(await ask(`document.documentElement.scrollWidth <= innerWidth`), "nothing is wider than the window");
  await picture("wide-light");
  if (await ask(`document.querySelector(".plot") !== null`)) {
    const first = await what();
    check(/held.*reserved/.test(first), `a moment is explained at once: ${first}`);
    const plot = await box(".plot");
    const at = (share) => plot.x + 58 + share * (plot.width - 58);
    await mouse("mousePressed", at(0.3), plot.y + 100, 1);
    await mouse("mouseReleased", at(0.3), plot.y + 100, 0);
    const events = await ask(`JSON.parse(document.getElementById("data").textContent).devices[0].curve.events`);
    check(events < 20 || (await what()) !== first, `a click explains a moment: ${await what()}`);
    check(/^#0--?\d+$/.test(await ask("location.hash")), "the address tells the moment");
    const linked = [await ask("location.hash"), await what()];
    await mouse("mousePressed", at(0.4), plot.y + 100, 1);
    for (let share = 0.4; share < 0.7; share += 0.02) await mouse("mouseMoved", at(share), plot.y + 100, 1);
    await mouse("mouseReleased", at(0.7), plot.y + 100, 0);
    check(/selection/.test(await what()), `dragging explains a range: ${await what()}`);
    check(/[+−]/.test(await ask(`document.querySelector(".kinds").textContent`)), "with what changed over it");
    await ask(`document.querySelector("[data-do=zoom]").click()`);
    await picture("zoomed", false);
    await ask(`document.querySelector(".plot").focus()`);
    await press("ArrowRight");
    check(!/selection/.test(await what()), "an arrow key goes on to a moment");
    const slowest = await ask(`(() => { const begin = performance.now(); for (let n = 0; n < 20; n++)
      document.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", { key: n % 2 ? "-" : "+" }));
      return (performance.now() - begin) / 20; })()`);
    check(slowest < 50, `a zoom is drawn in ${slowest.toFixed(1)} ms`);
    await ask(`document.querySelector("[data-do=axis]").click()`);
    await picture("by-event", false);
    await ask(`(() => { const input = document.querySelector(".icicle input"); input.value = ".py"; input.dispatchEvent(new Event("input")); })()`);
    check(/boxes/.test(await ask(`document.querySelector("output").textContent`)), "a search tells what it found");
    await box(".boxes");
    await picture("searched", false);
    await ask(`document.querySelector(".boxes > :last-child").click()`);
    const cells = await box(".map canvas");
    await mouse("mouseMoved", cells.x + 12, cells.y + 7, 0);
    check(/pool/.test(await ask(`document.querySelector(".hover").textContent`)), `a cell tells: ${await ask(`document.querySelector(".hover").textContent`)}`);
    await open(linked[0]);
    check((await what()) === linked[1], "a link leads to its moment");
  }
  await look(1280, 900, "dark");
  await picture("wide-dark");
  await look(390, 844, "light");
  check(await ask(`document.documentElement.scrollWidth <= 390`), "nothing is wider than a phone");
  await picture("phone-light");
  await look(390, 844, "dark");
  await picture("phone-dark");
  await look(800, 1100, "dark");
  await call("Emulation.setEmulatedMedia", { media: "print", features: [{ name: "prefers-color-scheme", value: "dark" }] });
  await picture("print");
  check(troubles.length === 0, `no error in the console, no request ${troubles.join("\n")}`);
} finally {
  socket.close();
  running.kill();
  await new Promise((gone) => running.on("exit", gone));
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
