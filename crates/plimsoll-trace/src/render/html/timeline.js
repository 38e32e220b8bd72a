// Bytes by category over events or time: what is under the pointer, at a moment, in a range.

/** The curve of one device: buckets of equally many events, each with its highest moment. */
class Curve {
  constructor(data) {
    this.events = data.events;
    this.span = data.span || 0;
    this.begins = floats(data.begins);
    this.length = this.begins.length;
    for (const name of ["peak", "allocated", "lowest", "reserved"]) this[name] = words(data[name]);
    this.pass = octets(data.pass);
    this.kinds = data.kinds.map((kind) => ({ ...kind, bytes: words(kind.bytes) }));
    this.most = this.reserved.reduce((most, grains, nth) => Math.max(most, grains, this.allocated[nth]), 1) * GRAIN;
  }

  /** Where a bucket begins on an axis; that of the last one's end is the axis's. */
  at(bucket, byTime) {
    if (bucket >= this.length) return this.end(byTime);
    return byTime ? this.begins[bucket] : Math.floor((bucket * this.events) / this.length);
  }

  end(byTime) {
    return byTime ? this.span : this.events;
  }

  bucketAt(x, byTime) {
    return placeOf(this.length, (bucket) => this.at(bucket, byTime), x);
  }

  /** The bucket that a moment lies in. */
  bucketOf(moment) {
    return this.bucketAt(Math.max(moment - 1, 0), false);
  }

  /** The bucket with the most allocated from one to another. */
  highest(from, to) {
    let best = from;
    for (let bucket = from + 1; bucket <= to; bucket++) if (this.allocated[bucket] > this.allocated[best]) best = bucket;
    return best;
  }

  /** The highest bucket of each pixel of a stretch: no peak is lost, however many lie under one pixel. */
  columns(from, to, pixels, byTime) {
    const found = new Uint32Array(pixels);
    let bucket = this.bucketAt(from, byTime);
    for (let pixel = 0; pixel < pixels; pixel++) {
      const until = from + ((to - from) * (pixel + 1)) / pixels;
      const first = bucket;
      while (bucket + 1 < this.length && this.at(bucket + 1, byTime) < until) bucket++;
      found[pixel] = this.highest(first, bucket);
    }
    return found;
  }
}

class Timeline {
  constructor(root, device, explain) {
    this.root = root;
    this.device = device;
    this.explain = explain;
    this.curve = new Curve(device.curve);
    this.byTime = this.curve.span > 0;
    this.plot = root.querySelector(".plot");
    this.strip = root.querySelector(".strip");
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
    element("li", list, "— reserved");
    if (this.device.limit) element("li", list, "– – the Plimsoll line: all that the allocator could have");
  }

  /** Pixels to the axis, and back. */
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
    const { pen, width, height } = surface(this.plot);
    const { curve, device } = this;
    const colour = colours();
    [this.left, this.inner] = [58, Math.max(width - 58, 1)];
    const [top, bottom] = [30, height - 30];
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
    columns.forEach((bucket, nth) => {
      if (curve.pass[bucket]) {
        pen.fillStyle = colour(`pass-${curve.pass[bucket]}`);
        pen.fillRect(this.left + nth * one, bottom + 2, one + 0.3, 7);
      }
    });
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
    let last = Infinity; // failures come latest first
    for (const [moment] of device.failures) {
      const isApart = last - this.pixelOf(moment) > 80;
      this.flag(pen, moment, isApart ? "out of memory" : "", colour("limit"), 22, y);
      if (isApart) last = this.pixelOf(moment);
    }
    this.flag(pen, device.peak, "peak", colour("ink"), 10, y);
    this.pen = pen;
    this.y = y;
    this.colour = colour;
    this.drawStrip();
    this.image = document.createElement("canvas");
    [this.image.width, this.image.height] = [this.plot.width, this.plot.height];
    this.image.getContext("2d").drawImage(this.plot, 0, 0);
    this.mark(null);
  }

  ticks(pen, bottom, colour) {
    const [from, to] = this.view;
    const tick = Math.max(step(to - from, this.inner / 110, 10), this.byTime ? 0.001 : 1);
    pen.fillStyle = colour("faint");
    for (let x = Math.ceil(from / tick) * tick; x <= to; x += tick) {
      const text = this.byTime ? duration(x) : `event ${count(Math.round(x))}`;
      const place = this.pixelAt(x);
      if (place + pen.measureText(text).width < this.left + this.inner) pen.fillText(text, place, bottom + 24);
    }
  }

  /** A flag stands on the curve and hides nothing of it. */
  flag(pen, moment, text, colour, top, y) {
    const place = this.pixelOf(moment);
    if (place < this.left || place > this.left + this.inner) return;
    pen.fillStyle = colour;
    const foot = y(this.curve.allocated[this.curve.bucketOf(moment)] * GRAIN);
    pen.fillRect(place - 0.5, top + 2, 1, Math.max(foot - top - 2, 0));
    const wide = pen.measureText(text).width;
    pen.fillText(text, Math.min(place - wide / 2, this.left + this.inner - wide), top);
  }

  /** The whole recording, small, with the part that is seen. */
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

  /** What is picked, and the readout under the pointer, over the picture. */
  mark(pointer) {
    const { pen, plot, colour } = this;
    const tall = plot.clientHeight - 30;
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
      if (place >= this.left) pen.fillRect(place - 1, 14, 2, foot - 14);
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
    const time = curve.span ? `${duration(curve.begins[bucket])}, ` : "";
    const [held, reserved] = [curve.allocated[bucket] * GRAIN, curve.reserved[bucket] * GRAIN];
    return `${time}${eventOf(curve.peak[bucket])}: ${size(held)} held, ${size(reserved)} reserved`;
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

  /** Tells of the picked moment, or of the range: its highest moment, and what changed over it. */
  panel() {
    const { curve, range, byTime } = this;
    const ends = range ? range.map((x) => curve.bucketAt(x, byTime)) : null;
    const bucket = ends ? curve.highest(...ends) : curve.bucketOf(this.picked);
    const pass = curve.pass[bucket] ? `, in the ${PASSES[curve.pass[bucket]]} pass` : "";
    const events = curve.at(bucket + 1, false) - curve.at(bucket, false);
    const of = range ? "highest of the selection" : events > 1 ? `highest of ${count(events)} events around` : "exactly there";
    this.root.querySelector(".what").textContent = `${this.told(bucket)} (${of})${pass}`;
    const kinds = this.root.querySelector(".kinds tbody");
    kinds.replaceChildren();
    for (const { kind, name, bytes } of curve.kinds) {
      const change = ends ? (bytes[ends[1]] - bytes[ends[0]]) * GRAIN : 0;
      if (!bytes[bucket] && !change) continue;
      const cells = [size(bytes[bucket] * GRAIN), percent(bytes[bucket], curve.allocated[bucket]), swatch(kind, name)];
      if (ends) cells.push(`${change < 0 ? "−" : "+"}${size(Math.abs(change))} from begin to end`);
      row(kinds, cells);
    }
    this.explain(range || curve.bucketOf(this.device.explained) !== bucket ? curve.peak[bucket] : this.device.explained, this);
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
    const at = (event) => event.clientX - plot.getBoundingClientRect().left;
    plot.addEventListener("pointerdown", (event) => {
      begin = at(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      if (begin !== null && Math.abs(at(event) - begin) > 4) this.range = [this.xAt(begin), this.xAt(at(event))].sort((a, b) => a - b);
      this.mark(at(event));
    });
    plot.addEventListener("pointerup", (event) => {
      if (begin === null) return;
      const [from, to] = [this.xAt(begin), this.xAt(at(event))];
      const isDrag = Math.abs(at(event) - begin) > 4;
      begin = null;
      if (isDrag) this.select(from, to);
      else this.pick(this.curve.peak[this.curve.bucketAt(to, this.byTime)]);
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
    axis.hidden = !this.byTime;
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
    } else if (event.key === "+" || event.key === "=") this.zoomBy(0.5, middle);
    else if (event.key === "-") this.zoomBy(2, middle);
    else if (event.key === "0" || event.key === "Escape") this.whole(), this.draw();
    else if (event.key === "Enter" && this.range) this.zoom(...this.range);
    else return;
    event.preventDefault();
  }
}
