// The segments as cells, at one of the moments that are kept.

class SegmentMap {
  constructor(root, data, kinds, device, moments) {
    Object.assign(this, { root, kinds, device, moments, data });
    this.canvas = root.querySelector("canvas");
    this.bytes = words(data.memories.bytes);
    this.what = octets(data.memories.what);
    for (const name of ["segments", "ends", "hidden", "lines"]) this[name] = words(data[name]);
    this.cells = octets(data.cells);
    this.starts = [0];
    for (const segment of this.segments) this.starts.push(this.starts[this.starts.length - 1] + this.cellsOf(segment));
    this.nth = 0;
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
  }

  cellsOf(memory) {
    return Math.ceil((this.bytes[memory] * GRAIN) / this.data.cellBytes);
  }

  show(nth) {
    this.nth = nth;
    const hidden = this.hidden[nth] ? `; ${count(this.hidden[nth])} more are not shown` : "";
    const moment = this.moments[nth];
    const when = moment === this.device.explained ? this.device.when : moment ? `after ${eventOf(moment)}` : eventOf(0);
    this.root.querySelector(".at").textContent = `${when}; a cell is ${size(this.data.cellBytes)}${hidden}`;
    this.draw();
  }

  draw() {
    const [wide, tall, gap] = [8, 14, 4];
    const width = this.canvas.clientWidth;
    this.places = [];
    let [x, y] = [0, 0];
    const [from, to] = [this.nth ? this.ends[this.nth - 1] : 0, this.ends[this.nth]];
    for (let segment = from; segment < to; segment++) {
      for (let cell = this.starts[segment]; cell < this.starts[segment + 1]; cell++) {
        if (x + wide > width) [x, y] = [0, y + tall + gap];
        this.places.push({ x, y, cell, segment });
        x += wide;
      }
      x += gap;
    }
    const { pen } = surface(this.canvas, y + tall + 1);
    const colour = colours();
    const kinds = Array.from({ length: 16 }, (_, kind) => colour(`kind-${kind}`));
    const [hole, ink] = [colour("hole"), colour("ink")];
    for (const { x, y, cell, segment } of this.places) {
      const code = this.cells[cell];
      const held = ((code >> 4) / 15) * tall;
      pen.fillStyle = hole;
      pen.fillRect(x, y, wide - 0.5, tall);
      pen.fillStyle = kinds[code & 15];
      pen.fillRect(x, y + tall - held, wide - 0.5, held);
      pen.fillStyle = ink;
      if (cell === this.starts[segment]) pen.fillRect(x, y, 1, tall);
    }
  }

  tell(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const found = this.places.find(({ x, y }) => px >= x && px < x + 8 && py >= y && py < y + 14);
    if (!found) return;
    const { cell, segment } = found;
    const memory = this.segments[segment];
    const code = this.cells[cell];
    const pool = this.what[memory] & 1 ? "large" : "small";
    const grows = this.what[memory] & 2 ? ", expandable" : "";
    const kind = this.kinds[code & 15] || "waiting for a stream";
    const held = code >> 4 ? `${kind}, ${percent(code >> 4, 15)} held` : "all cached";
    const line = this.moments[this.nth] === this.device.explained ? this.lines[cell - this.places[0].cell] : 0;
    const told = `${this.data.memories.addr[memory]}, ${size(this.bytes[memory] * GRAIN)}, ${pool} pool${grows}: ${held}`;
    this.root.querySelector(".hover").textContent = line ? `${told}; ${this.data.names[line - 1]}` : told;
  }
}
