// The segments as cells, at any moment. A cell's colour shows the kind of most of its live memory, and its height the
// amount. Even a small block in a large hole is visible, because it pins the hole.

const CELL = { wide: 8, tall: 14, gap: 4 };
/** The maximum number of cells drawn: a file may claim any number of segments. */
const MOST_CELLS = 20000;

class SegmentMap {
  constructor(root, memory, held, kinds, waiting) {
    // Blocks that wait for a stream have a separate kind.
    Object.assign(this, { root, memory, held, kinds, waiting });
    this.canvas = root.querySelector("canvas");
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
  }

  show(moment, when) {
    const { memory } = this;
    const hidden = memory.leftOut ? `; ${count(memory.leftOut)} smaller segments are not shown` : "";
    const blocks = this.held.blocks.leftOut;
    const small = blocks ? `; ${count(blocks)} smaller blocks of the recording are not shown` : "";
    this.root.querySelector(".at").textContent = `${when}; a cell is ${size(memory.cellBytes)}${hidden}${small}`;
    this.moment = moment;
    this.fill();
    this.draw();
  }

  /** Assigns the blocks of the moment to the cells of its segments. */
  fill() {
    const { memory, held, moment } = this;
    this.there = memory.at(moment);
    this.starts = [0];
    for (const nth of this.there) {
      const next = this.starts[this.starts.length - 1] + Math.ceil((memory.bytes[nth] * GRAIN) / memory.cellBytes);
      if (next > MOST_CELLS) break;
      this.starts.push(next);
    }
    this.there.length = this.starts.length - 1;
    const cells = this.starts[this.there.length];
    this.bytes = Array.from({ length: 16 }, () => null);
    const put = (blocks, block, kind) => {
      const place = placeOf(this.there.length, (place) => memory.addr[this.there[place]], blocks.addr[block]);
      const from = blocks.addr[block] - memory.addr[this.there[place]];
      const to = Math.min(from + blocks.bytes[block] * GRAIN, memory.bytes[this.there[place]] * GRAIN);
      if (from < 0 || from >= to) return;
      this.bytes[kind] ||= new Float64Array(cells);
      for (let cell = Math.floor(from / memory.cellBytes); cell * memory.cellBytes < to; cell++) {
        const [begins, ends] = [cell * memory.cellBytes, (cell + 1) * memory.cellBytes];
        this.bytes[kind][this.starts[place] + cell] += Math.min(to, ends) - Math.max(from, begins);
      }
    };
    if (cells === 0) return;
    held.blocks.at(moment, (block) => put(held.blocks, block, held.keys.kind[held.blocks.key[block]]));
    held.waiting.at(moment, (block) => put(held.waiting, block, this.waiting));
  }

  /** The kind of most of a cell's live bytes, and the number of live bytes. */
  cell(cell) {
    let [most, kind, all] = [0, 0, 0];
    this.bytes.forEach((bytes, nth) => {
      if (!bytes) return;
      all += bytes[cell];
      if (bytes[cell] > most) [most, kind] = [bytes[cell], nth];
    });
    return [kind, all];
  }

  draw() {
    const { wide, tall, gap } = CELL;
    const width = this.canvas.clientWidth;
    this.places = [];
    let [x, y] = [0, 0];
    this.there.forEach((nth, place) => {
      for (let cell = this.starts[place]; cell < this.starts[place + 1]; cell++) {
        if (x + wide > width) [x, y] = [0, y + tall + gap];
        this.places.push({ x, y, cell, place });
        x += wide;
      }
      x += gap;
    });
    const { pen } = surface(this.canvas, y + tall + 1);
    const colour = colours();
    const kinds = Array.from({ length: 16 }, (_, kind) => colour(`kind-${kind}`));
    const [hole, ink] = [colour("hole"), colour("ink")];
    for (const { x, y, cell, place } of this.places) {
      const [kind, bytes] = this.cell(cell);
      // A cell with any live memory shows at least one pixel of it.
      const held = bytes ? Math.max(Math.min(bytes / this.memory.cellBytes, 1) * tall, 1) : 0;
      pen.fillStyle = hole;
      pen.fillRect(x, y, wide - 0.5, tall);
      pen.fillStyle = kinds[kind];
      pen.fillRect(x, y + tall - held, wide - 0.5, held);
      pen.fillStyle = ink;
      if (cell === this.starts[place]) pen.fillRect(x, y, 1, tall);
    }
  }

  tell(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const found = this.places.find(({ x, y }) => px >= x && px < x + CELL.wide && py >= y && py < y + CELL.tall);
    if (!found) return;
    const { memory, held } = this;
    const { cell, place } = found;
    const nth = this.there[place];
    const pool = memory.what[nth] & 1 ? "large" : "small";
    const grows = memory.what[nth] & 2 ? ", expandable" : "";
    const [kind, bytes] = this.cell(cell);
    const of = Math.min(memory.cellBytes, memory.bytes[nth] * GRAIN);
    const what = bytes ? `${this.kinds[kind]}, ${percent(bytes, of)} live` : "all cached";
    const told = `0x${memory.addr[nth].toString(16)}, ${size(memory.bytes[nth] * GRAIN)}, ${pool} pool${grows}: ${what}`;
    const block = this.largest(memory.addr[nth] + (cell - this.starts[place]) * memory.cellBytes);
    const { blocks } = held;
    const ofBlock = () => `${size(blocks.bytes[block] * GRAIN)} from ${held.names[held.keys.line[blocks.key[block]]]}, since ${eventOf(blocks.from[block])}`;
    this.root.querySelector(".hover").textContent = block === null ? told : `${told}; ${ofBlock()}`;
  }

  /** The block with the most bytes in the cell that begins at this address. */
  largest(begins) {
    const { blocks } = this.held;
    let [found, most] = [null, 0];
    blocks.at(this.moment, (block) => {
      const to = Math.min(blocks.addr[block] + blocks.bytes[block] * GRAIN, begins + this.memory.cellBytes);
      const shared = to - Math.max(blocks.addr[block], begins);
      if (shared > most) [found, most] = [block, shared];
    });
    return found;
  }
}
