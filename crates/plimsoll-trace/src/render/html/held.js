// The live memory after any event, computed from the blocks.

/** Blocks, each with the moments of its birth and end, in the order of birth. */
class Blocks {
  constructor(data) {
    for (const name of ["from", "to", "bytes"]) this[name] = words(data[name]);
    this.addr = floats(data.addr);
    this.key = data.key ? words(data.key) : null;
    this.leftOut = data.leftOut || 0;
  }

  /** Calls `tell` for each block that exists at a moment. */
  at(moment, tell) {
    const { from, to } = this;
    for (let block = 0; block < from.length; block++) if (from[block] <= moment && moment < to[block]) tell(block);
  }
}

/** The live memory of one device: its blocks, by kind, by line and by stack. */
class Held {
  constructor(device) {
    const { blocks, waiting, keys, boxes, names } = device.held;
    this.blocks = new Blocks(blocks);
    this.waiting = new Blocks(waiting);
    this.keys = { box: words(keys.box), kind: octets(keys.kind), line: words(keys.line) };
    this.boxes = { parents: words(boxes.parents), labels: words(boxes.labels), library: octets(boxes.library) };
    this.names = names;
  }

  /** Whether the page has every block. */
  get isWhole() {
    return this.blocks.leftOut === 0;
  }

  /** Bytes and blocks at a moment, by key. */
  sums(moment) {
    const size = this.keys.kind.length;
    const sums = { moment, bytes: new Float64Array(size), blocks: new Uint32Array(size), all: 0 };
    const { bytes, key } = this.blocks;
    this.blocks.at(moment, (block) => {
      const held = bytes[block] * GRAIN;
      sums.bytes[key[block]] += held;
      sums.blocks[key[block]]++;
      sums.all += held;
    });
    return sums;
  }

  /** Bytes by kind. */
  kinds(sums) {
    const kinds = new Float64Array(16);
    sums.bytes.forEach((bytes, key) => (kinds[this.keys.kind[key]] += bytes));
    return kinds;
  }

  /** Lines by kind, the largest first. If `ends` are given, also the bytes at these two moments. */
  lines(sums, ends) {
    const lines = new Map();
    const add = (name, sums) =>
      sums.bytes.forEach((bytes, key) => {
        if (!sums.blocks[key]) return;
        const [line, kind] = [this.keys.line[key], this.keys.kind[key]];
        const found = lines.get(line * 16 + kind) || { line, kind, bytes: 0, blocks: 0, begin: 0, end: 0 };
        found[name] += bytes;
        if (name === "bytes") found.blocks += sums.blocks[key];
        lines.set(line * 16 + kind, found);
      });
    add("bytes", sums);
    if (ends) add("begin", ends[0]), add("end", ends[1]);
    return [...lines.values()].sort((a, b) => b.bytes - a.bytes || b.end - a.end);
  }

  /** Bytes, blocks and kind by box; kind 15 means several kinds. */
  inBoxes(sums) {
    const { parents } = this.boxes;
    const boxes = parents.length;
    const found = { bytes: new Float64Array(boxes), blocks: new Uint32Array(boxes), kind: new Uint8Array(boxes).fill(255) };
    const add = (box, bytes, blocks, kind) => {
      found.bytes[box] += bytes;
      found.blocks[box] += blocks;
      if (blocks) found.kind[box] = [255, kind].includes(found.kind[box]) ? kind : 15;
    };
    sums.bytes.forEach((bytes, key) => add(this.keys.box[key], bytes, sums.blocks[key], this.keys.kind[key]));
    for (let box = boxes - 1; box > 0; box--) add(parents[box], found.bytes[box], found.blocks[box], found.kind[box]);
    return found;
  }

  /** The effect of an event, if it allocates or frees a block that the page has. */
  changeAt(moment) {
    const { from, to, bytes, key } = this.blocks;
    const name = (block) => `${size(bytes[block] * GRAIN)} at ${this.names[this.keys.line[key[block]]]}`;
    const came = from.indexOf(moment);
    if (moment && came >= 0) return `it allocated ${name(came)}`;
    const went = to.indexOf(moment);
    return moment && went >= 0 ? `it freed ${name(went)}` : "";
  }
}

/** The device's memory over time, in address order. */
class Memory {
  constructor(data) {
    for (const name of ["bytes", "from", "to"]) this[name] = words(data[name]);
    this.addr = floats(data.addr);
    this.what = octets(data.what);
    Object.assign(this, { cellBytes: data.cellBytes, leftOut: data.leftOut, isWhole: data.isWhole });
  }

  at(moment) {
    const there = [];
    for (let nth = 0; nth < this.from.length; nth++) if (this.from[nth] <= moment && moment < this.to[nth]) there.push(nth);
    return there;
  }

  reserved(moment) {
    return this.at(moment).reduce((sum, nth) => sum + this.bytes[nth] * GRAIN, 0);
  }
}
