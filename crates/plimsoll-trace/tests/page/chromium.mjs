// Drives Chromium over its DevTools protocol, without any package: the actions of a person with mouse and keys, and the
// resulting contents of the page.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const browser = process.env.CHROMIUM || "chromium";

/** Starts the browser with one tab; null if there is no browser. */
export async function launch() {
  if (spawnSync(browser, ["--version"]).status !== 0) return null;
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
  const tab = new Tab(socket);
  for (const domain of ["Page", "Runtime", "Log", "Network"]) await tab.call(`${domain}.enable`);
  tab.close = async () => {
    socket.close();
    running.kill();
    await new Promise((gone) => running.on("exit", gone));
    rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  };
  return tab;
}

class Tab {
  constructor(socket) {
    this.socket = socket;
    this.waiting = new Map();
    this.last = 0;
    this.loaded = () => {};
    /** Errors, console output, and network requests. */
    this.troubles = [];
    socket.onmessage = ({ data }) => this.hear(JSON.parse(data));
  }

  hear({ id, result, error, method, params }) {
    if (id) this.waiting.get(id)(error ? Promise.reject(new Error(error.message)) : result);
    if (method === "Page.loadEventFired") this.loaded();
    if (method === "Runtime.exceptionThrown") this.troubles.push(params.exceptionDetails.exception?.description);
    if (method === "Log.entryAdded" && params.entry.level !== "info") this.troubles.push(params.entry.text);
    if (method === "Runtime.consoleAPICalled") this.troubles.push(JSON.stringify(params.args));
    if (method === "Network.requestWillBeSent" && !/^(file|data|about):/.test(params.request.url)) this.troubles.push(params.request.url);
  }

  call(method, params = {}) {
    return new Promise((done) => {
      this.waiting.set(++this.last, done);
      this.socket.send(JSON.stringify({ id: this.last, method, params }));
    });
  }

  /** Evaluates an expression in the page. An exception is recorded as a trouble. */
  async ask(expression) {
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) this.troubles.push(exceptionDetails.exception?.description);
    return result.value;
  }

  text(selector) {
    return this.ask(`document.querySelector(${JSON.stringify(selector)}).textContent`);
  }

  async open(file, hash = "") {
    for (const url of ["about:blank", `file://${resolve(file)}${hash}`]) {
      const there = new Promise((done) => (this.loaded = done));
      await this.call("Page.navigate", { url });
      await there;
    }
  }

  async look(width, height, scheme, media = "screen") {
    await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
    await this.call("Emulation.setEmulatedMedia", { media, features: [{ name: "prefers-color-scheme", value: scheme }] });
    await this.frame();
  }

  /** Waits until the last changes are drawn. */
  frame() {
    return this.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))");
  }

  /** Takes a screenshot of the window, or of the page from its top; of a very long page, as much as the browser draws at once. */
  async picture(path, whole) {
    const [width, tall] = await this.ask("[document.documentElement.clientWidth, document.documentElement.scrollHeight]");
    const clip = whole ? { x: 0, y: 0, width, height: Math.min(tall, 8000), scale: 1 } : undefined;
    const { data } = await this.call("Page.captureScreenshot", { captureBeyondViewport: whole, clip });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  async pdf(path) {
    const { data } = await this.call("Page.printToPDF", { printBackground: false });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  mouse(type, x, y, buttons) {
    const button = type === "mouseMoved" ? "none" : "left";
    return this.call("Input.dispatchMouseEvent", { type, x, y, button, buttons, clickCount: 1 });
  }

  async click(x, y) {
    await this.mouse("mousePressed", x, y, 1);
    await this.mouse("mouseReleased", x, y, 0);
    await this.frame();
  }

  /** Presses the mouse at the first place, moves in this many steps with a call of `halfway` in the middle, and releases. */
  async drag(from, to, y, steps, halfway = () => {}) {
    await this.mouse("mousePressed", from, y, 1);
    for (let step = 1; step <= steps; step++) {
      await this.mouse("mouseMoved", from + ((to - from) * step) / steps, y, 1);
      if (step === steps >> 1) await halfway();
    }
    await this.mouse("mouseReleased", to, y, 0);
    await this.frame();
  }

  async press(key) {
    for (const type of ["keyDown", "keyUp"]) {
      await this.call("Input.dispatchKeyEvent", { type, key, text: key.length === 1 ? key : undefined });
    }
    await this.frame();
  }

  /** Types as a person does, into the focused element. */
  async type(text) {
    for (const letter of text) await this.press(letter);
  }

  /** Scrolls to an element, and returns its place on the screen. */
  async box(selector) {
    return this.ask(`(() => { const at = document.querySelector(${JSON.stringify(selector)}); at.scrollIntoView({ block: "center" });
      const { x, y, width, height } = at.getBoundingClientRect(); return { x, y, width, height }; })()`);
  }
}
