// Bytes by category over events or time: under the pointer, at a moment, in a range.

/** The bottom of the text of flags, in pixels from the top. */
const FLAGS = 25;
/** Steps that are narrower than this on average are drawn as one band. */
const NARROWEST = 4;

class Timeline {
  constructor(root, device, held, memory, explain) {
    Object.assign(this, { root, device, held, memory, explain });
    this.curve = new Curve(device.curve);
    // If most events are close together in time, an axis of time shows little.
    const middle = this.curve.begins[this.curve.length >> 1] / this.curve.span;
    this.byTime = middle > 0.1 && middle < 0.9;
    this.plot = root.querySelector(".plot");
    this.strip = root.querySelector(".strip");
    this.steps = { ends: words(device.steps.ends), apart: device.steps.apart };
    // The height of the parts below the plot: steps, passes, the axis.
    this.foot = this.steps.ends.length ? 44 : 30;
    this.picked = device.explained;
    this.range = null;
    this.whole();
    this.legend();
    this.listen();
  }

  whole() {
    this.view = [0, this.curve.end(this.byTime) || 1];
  }

  legend() {
    const list = this.root.querySelector(".legend");
    for (const { kind, name } of this.curve.kinds) element("li", list).append(swatch(kind, name));
    const passes = new Set(this.curve.pass);
    for (const pass of [1, 2, 3].filter((pass) => passes.has(pass))) {
      const item = element("li", list);
      element("i", item).style.background = `var(--pass-${pass})`;
      item.append(`${PASSES[pass]} pass`);
    }
    if (this.steps.ends.length) {
      const item = element("li", list);
      element("i", item).style.background = "linear-gradient(90deg, var(--step-0) 50%, var(--step-1) 50%)";
      item.append("steps");
    }
    element("li", list, "— reserved");
    if (this.device.limit) element("li", list, "– – the Plimsoll line: all that the allocator could have");
  }

  /** Converts pixels to positions on the axis, and back. */
  xAt(pixel) {
    const [from, to] = this.view;
    return from + ((to - from) * Math.min(Math.max(pixel - this.left, 0), this.inner)) / this.inner;
  }

  pixelAt(x) {
    const [from, to] = this.view;
    return this.left + ((x - from) / (to - from)) * this.inner;
  }

  pixelOf(moment) {
    const { curve, byTime } = this;
    return this.pixelAt(byTime ? curve.begins[curve.bucketOf(moment)] : Math.max(moment - 1, 0));
  }

  draw() {
    if (!this.plot.clientWidth) return;
    const { pen, width, height } = surface(this.plot);
    const { curve, device } = this;
    const colour = colours();
    [this.left, this.inner] = [58, Math.max(width - 58, 1)];
    const [top, bottom] = [30, height - this.foot];
    this.bottom = bottom;
    const pixels = Math.floor(this.inner * (window.devicePixelRatio || 1));
    const columns = curve.columns(...this.view, pixels, this.byTime);
    const seen = columns.reduce((most, bucket) => Math.max(most, curve.reserved[bucket], curve.allocated[bucket]), 1) * GRAIN;
    const limit = (device.limit || 0) * GRAIN;
    const isLimitNear = limit > 0 && limit < 3 * seen;
    const most = Math.max(seen, isLimitNear ? limit : 0) * 1.04;
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);
    const one = this.inner / pixels;

    pen.fillStyle = colour("faint");
    pen.strokeStyle = colour("rule");
    const unit = most > 2 ** 30 ? 2 ** 30 : 2 ** 20;
    const rung = step(most / unit, 5, 10) * unit;
    for (let bytes = 0; bytes < most; bytes += rung) {
      pen.fillText(`${+(bytes / unit).toFixed(3)} ${unit === 2 ** 30 ? "GiB" : "MiB"}`, 0, y(bytes) + 4);
      pen.strokeRect(this.left, y(bytes), this.inner, 0);
    }
    const base = new Float64Array(pixels).fill(bottom);
    for (const { kind, bytes } of curve.kinds) {
      pen.fillStyle = colour(`kind-${kind}`);
      columns.forEach((bucket, nth) => {
        const tall = ((bytes[bucket] * GRAIN) / most) * (bottom - top);
        if (tall > 0) pen.fillRect(this.left + nth * one, base[nth] - tall, one + 0.3, tall);
        base[nth] -= tall;
      });
    }
    const passes = bottom + this.foot - 28;
    columns.forEach((bucket, nth) => {
      if (curve.pass[bucket]) {
        pen.fillStyle = colour(`pass-${curve.pass[bucket]}`);
        pen.fillRect(this.left + nth * one, passes, one + 0.3, 7);
      }
    });
    this.bands(pen, top, bottom, colour);
    pen.strokeStyle = colour("ink");
    pen.beginPath();
    columns.forEach((bucket, nth) => pen.lineTo(this.left + nth * one, y(curve.reserved[bucket] * GRAIN)));
    pen.stroke();
    this.ticks(pen, bottom, colour);
    if (limit) {
      const at = isLimitNear ? y(limit) : top - 4;
      pen.strokeStyle = pen.fillStyle = colour("limit");
      pen.setLineDash([7, 5]);
      pen.lineWidth = 1.5;
      pen.strokeRect(this.left, at, this.inner, 0);
      pen.setLineDash([]);
      pen.lineWidth = 1;
      pen.fillText(`limit ${size(limit)}${isLimitNear ? "" : ", far above"}`, this.left + 6, at - 4);
    }
    let last = Infinity; // failures are sorted, latest first
    for (const [moment] of device.failures) {
      const isApart = last - this.pixelOf(moment) > 80;
      this.flag(pen, moment, isApart ? "out of memory" : "", colour("limit"), 22, y);
      if (isApart) last = this.pixelOf(moment);
    }
    this.flag(pen, device.peak, "peak", colour("ink"), device.failures.length ? 10 : 22, y);
    this.pen = pen;
    this.y = y;
    this.colour = colour;
    this.drawStrip();
    this.image = document.createElement("canvas");
    [this.image.width, this.image.height] = [this.plot.width, this.plot.height];
    this.image.getContext("2d").drawImage(this.plot, 0, 0);
    this.mark(null);
  }

  /** Draws the steps as bands below the plot, and as lines in it if there are not too many. */
  bands(pen, top, bottom, colour) {
    const { ends, apart } = this.steps;
    const right = this.left + this.inner;
    const seen = ends.filter((end) => this.pixelOf(end) > this.left && this.pixelOf(end) <= right).length;
    if (seen * NARROWEST > this.inner) {
      pen.fillStyle = colour("step-0");
      pen.fillRect(this.left, bottom + 2, this.inner, 12);
      pen.fillStyle = colour("ink");
      pen.fillText(`${count(seen * apart)} steps`, this.left + 3, bottom + 12);
      return;
    }
    let begins = this.pixelAt(0);
    ends.forEach((end, nth) => {
      const at = this.pixelOf(end);
      const [from, to] = [Math.max(begins, this.left), Math.min(at, right)];
      begins = at;
      if (to <= from) return;
      pen.fillStyle = colour(`step-${nth % 2}`);
      pen.fillRect(from, bottom + 2, to - from, 12);
      const text = to - from > 52 ? `step ${(nth + 1) * apart}` : `${(nth + 1) * apart}`;
      pen.fillStyle = colour("ink");
      if (pen.measureText(text).width + 4 < to - from) pen.fillText(text, from + 3, bottom + 12);
      if (to - from < 12 || at > right) return;
      pen.fillStyle = colour("step-line");
      pen.fillRect(to - 0.5, top, 1, bottom - top);
    });
  }

  ticks(pen, bottom, colour) {
    const [from, to] = this.view;
    const tick = Math.max(step(to - from, this.inner / 110, 10), this.byTime ? 0.001 : 1);
    pen.fillStyle = colour("faint");
    for (let x = Math.ceil(from / tick) * tick; x <= to; x += tick) {
      const text = this.byTime ? duration(x) : `event ${count(Math.round(x))}`;
      const place = this.pixelAt(x);
      if (place + pen.measureText(text).width < this.left + this.inner) pen.fillText(text, place, bottom + this.foot - 6);
    }
  }

  /** Draws a flag above the curve, without hiding any of it. */
  flag(pen, moment, text, colour, top, y) {
    const place = this.pixelOf(moment);
    if (place < this.left || place > this.left + this.inner) return;
    pen.fillStyle = colour;
    const foot = y(this.curve.allocated[this.curve.bucketOf(moment)] * GRAIN);
    // The line does not cross the text of another flag.
    pen.fillRect(place - 0.5, FLAGS, 1, Math.max(foot - FLAGS, 0));
    const wide = pen.measureText(text).width;
    pen.fillText(text, Math.min(place - wide / 2, this.left + this.inner - wide), top);
  }

  /** Draws a small overview of the recording, with the visible part marked. */
  drawStrip() {
    const { pen, width, height } = surface(this.strip);
    const { curve } = this;
    const pixels = Math.max(Math.floor(width - this.left), 1);
    const columns = curve.columns(0, curve.end(this.byTime), pixels, this.byTime);
    pen.fillStyle = this.colour("kind-15");
    columns.forEach((bucket, nth) => {
      const tall = ((curve.allocated[bucket] * GRAIN) / curve.most) * height;
      pen.fillRect(this.left + nth, height - tall, 1, tall);
    });
    const [from, to] = this.view.map((x) => this.left + (x / (curve.end(this.byTime) || 1)) * pixels);
    pen.fillStyle = this.colour("select");
    pen.fillRect(from, 0, to - from, height);
    pen.strokeStyle = this.colour("accent");
    pen.strokeRect(from + 0.5, 0.5, Math.max(to - from - 1, 1), height - 1);
  }

  /** Draws the selection, and the readout under the pointer, over the picture. */
  mark(pointer) {
    if (!this.image) return;
    const { pen, plot, colour, bottom: tall } = this;
    pen.clearRect(0, 0, plot.clientWidth, plot.clientHeight);
    pen.drawImage(this.image, 0, 0, plot.clientWidth, plot.clientHeight);
    pen.fillStyle = colour("select");
    if (this.range) {
      const [from, to] = this.range.map((x) => Math.min(Math.max(this.pixelAt(x), this.left), this.left + this.inner));
      pen.fillRect(from, 14, to - from, tall - 14);
    } else {
      pen.fillStyle = colour("accent");
      const place = this.pixelOf(this.picked);
      const foot = this.y(this.curve.allocated[this.curve.bucketOf(this.picked)] * GRAIN);
      if (place >= this.left) pen.fillRect(place - 1, FLAGS, 2, foot - FLAGS);
      if (place >= this.left) pen.fillRect(place - 4, tall - 2, 8, 4);
    }
    if (pointer === null) return;
    const bucket = this.curve.bucketAt(this.xAt(pointer), this.byTime);
    const text = this.told(bucket);
    const wide = pen.measureText(text).width + 10;
    const place = Math.min(Math.max(pointer - wide / 2, 0), plot.clientWidth - wide);
    pen.fillStyle = colour("ink");
    pen.fillRect(pointer - 0.5, 14, 1, tall - 14);
    pen.fillRect(place, tall - 40, wide, 20);
    pen.fillStyle = colour("paper");
    pen.fillText(text, place + 5, tall - 26);
  }

  told(bucket) {
    const { curve } = this;
    return this.sentence(bucket, curve.peak[bucket], curve.allocated[bucket] * GRAIN, curve.reserved[bucket] * GRAIN);
  }

  sentence(bucket, moment, held, reserved) {
    const time = this.curve.span ? `${duration(this.curve.begins[bucket])}, ` : "";
    return `${time}${eventOf(moment)}: ${size(held)} live, ${size(reserved)} reserved`;
  }

  pick(moment) {
    this.range = null;
    this.picked = Math.min(Math.max(moment, 0), this.curve.events);
    this.panel();
    this.mark(null);
  }

  select(from, to) {
    this.range = [Math.min(from, to), Math.max(from, to)];
    this.panel();
    this.mark(null);
  }

  /** Selects the range between two moments. */
  selectMoments(from, to) {
    const x = (moment) => (this.byTime ? this.curve.begins[this.curve.bucketOf(moment)] : Math.max(moment - 1, 0));
    this.select(x(from), x(to));
  }

  /** Describes the selected moment, or the selected range: its highest moment, and the changes over it. */
  panel(isBrushing = false) {
    if (this.range) this.tellRange(this.range.map((x) => this.curve.bucketAt(x, this.byTime)), isBrushing);
    else this.tellMoment();
  }

  tellRange(ends, isBrushing) {
    const { curve } = this;
    const bucket = curve.highest(...ends);
    const now = (kind) => kind.bytes[bucket] * GRAIN;
    const changed = (kind) => (kind.bytes[ends[1]] - kind.bytes[ends[0]]) * GRAIN;
    this.table(`${this.told(bucket)} (highest of the selection)${this.passAt(bucket, curve.peak[bucket])}`, curve.allocated[bucket] * GRAIN, now, changed);
    const moments = ends.map((end) => curve.peak[end]);
    this.explain({ moment: curve.peak[bucket], allocated: curve.allocated[bucket] * GRAIN, ends: moments, hash: moments.join("-"), isBrushing });
  }

  tellMoment() {
    const { curve, held, memory, picked } = this;
    const bucket = curve.bucketOf(picked);
    let told = this.told(bucket);
    let allocated = curve.allocated[bucket] * GRAIN;
    let now = (kind) => kind.bytes[bucket] * GRAIN;
    if (picked !== curve.peak[bucket] && held.isWhole) {
      const sums = held.sums(picked);
      const kinds = held.kinds(sums);
      allocated = sums.all;
      now = ({ kind }) => kinds[kind];
      told = this.sentence(bucket, picked, allocated, memory.isWhole ? memory.reserved(picked) : curve.reserved[bucket] * GRAIN);
    } else if (picked !== curve.peak[bucket]) {
      told = `${eventOf(picked)}; the highest around it is at ${told}`;
    }
    const did = held.changeAt(picked);
    this.table(`${told}${did && `; ${did}`}${this.passAt(bucket, picked)}`, allocated, now, () => 0);
    this.explain({ moment: picked, allocated, ends: null, hash: picked });
  }

  passAt(bucket, moment) {
    const pass = this.curve.pass[bucket];
    const { ends, apart } = this.steps;
    const step = ends.length ? placeOf(ends.length + 1, (nth) => (nth ? ends[nth - 1] + 1 : 0), moment) : 0;
    const inStep = ends.length && step < ends.length ? `, step ${step * apart + 1}${apart > 1 ? ` to ${(step + 1) * apart}` : ""}` : "";
    return `${inStep}${pass ? `, in the ${PASSES[pass]} pass` : ""}`;
  }

  table(told, allocated, now, changed) {
    this.root.querySelector(".what").textContent = told;
    const kinds = this.root.querySelector(".kinds tbody");
    kinds.replaceChildren();
    for (const kind of this.curve.kinds) {
      const [bytes, changes] = [now(kind), changed(kind)];
      if (!bytes && !changes) continue;
      const cells = [size(bytes), percent(bytes, allocated), swatch(kind.kind, kind.name)];
      if (this.range) cells.push(change(changes));
      row(kinds, cells);
    }
  }

  /** Scrolls until the plot and the selection's figures are visible, if they are not. */
  reveal() {
    this.root.querySelector(".view").scrollIntoView({ block: "nearest" });
  }

  zoom(from, to) {
    const end = this.curve.end(this.byTime) || 1;
    const least = this.byTime ? Math.min(1, end) : Math.min(2, end);
    const wide = Math.min(Math.max(to - from, least), end);
    const begin = Math.min(Math.max(from, 0), end - wide);
    this.view = [begin, begin + wide];
    this.draw();
  }

  zoomBy(factor, around) {
    const [from, to] = this.view;
    this.zoom(around - (around - from) * factor, around + (to - around) * factor);
  }

  listen() {
    const { plot, strip, root, device } = this;
    const button = (name) => root.querySelector(`[data-do=${name}]`);
    let begin = null;
    const soon = oncePerFrame();
    const at = (event) => event.clientX - plot.getBoundingClientRect().left;
    plot.addEventListener("pointerdown", (event) => {
      begin = at(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      const here = at(event);
      const isBrushing = begin !== null && Math.abs(here - begin) > 4;
      if (isBrushing) this.range = [this.xAt(begin), this.xAt(here)].sort((a, b) => a - b);
      soon(() => {
        if (isBrushing && this.range && begin !== null) this.panel(true);
        this.mark(here);
      });
    });
    plot.addEventListener("pointerup", (event) => {
      if (begin === null) return;
      const [from, to] = [this.xAt(begin), this.xAt(at(event))];
      const isDrag = Math.abs(at(event) - begin) > 4;
      begin = null;
      if (isDrag) this.select(from, to);
      else this.pick(this.curve.peak[this.curve.bucketAt(to, this.byTime)]);
      this.reveal();
    });
    plot.addEventListener("pointercancel", () => (begin = null));
    plot.addEventListener("pointerleave", () => this.mark(null));
    plot.addEventListener("dblclick", () => (this.whole(), this.draw()));
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.xAt(at(event)));
    }, { passive: false });
    const drag = (event) => {
      if (event.buttons === 0) return;
      const wide = (this.view[1] - this.view[0]) / 2;
      const share = (event.clientX - strip.getBoundingClientRect().left - this.left) / this.inner;
      const middle = share * this.curve.end(this.byTime);
      this.zoom(middle - wide, middle + wide);
    };
    for (const name of ["pointerdown", "pointermove"]) strip.addEventListener(name, drag);
    plot.addEventListener("keydown", (event) => this.key(event));
    const axis = button("axis");
    axis.hidden = !this.curve.span;
    axis.setAttribute("aria-pressed", String(this.byTime));
    axis.addEventListener("click", () => {
      this.byTime = !this.byTime;
      this.range = null;
      axis.setAttribute("aria-pressed", String(this.byTime));
      this.whole();
      this.draw();
    });
    button("explained").textContent = device.when;
    button("explained").addEventListener("click", () => this.pick(device.explained));
    button("zoom").addEventListener("click", () => this.range && this.zoom(...this.range));
    button("whole").addEventListener("click", () => (this.whole(), this.draw()));
  }

  key(event) {
    const { curve, byTime } = this;
    const middle = (this.view[0] + this.view[1]) / 2;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (side) {
      const pixel = Math.max(Math.round(curve.length / 400), 1);
      const here = this.range ? curve.bucketAt(this.range[1], byTime) : curve.bucketOf(this.picked);
      const next = Math.min(Math.max(here + side * pixel, 0), curve.length - 1);
      if (event.shiftKey) this.select(this.range ? this.range[0] : curve.at(here, byTime), curve.at(next, byTime));
      else this.pick(curve.peak[next]);
    } else if (event.key === "," || event.key === ".") this.pick(this.picked + (event.key === "." ? 1 : -1));
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5, middle);
    else if (event.key === "-") this.zoomBy(2, middle);
    else if (event.key === "0" || event.key === "Escape") this.whole(), this.draw();
    else if (event.key === "Enter" && this.range) this.zoom(...this.range);
    else return;
    event.preventDefault();
  }
}
