// The live memory at a moment, by stack: the width of a box is proportional to its bytes.

/** The minimum width of a box that is drawn, as a share of the total. While the mouse brushes, many boxes would be slow. */
const LEAST = { still: 0.0008, brushing: 0.006 };

class Icicle {
  constructor(root, held) {
    Object.assign(this, { root, held, top: 0, least: LEAST.still });
    this.boxes = root.querySelector(".boxes");
    const { parents } = held.boxes;
    this.children = Array.from(parents, () => []);
    parents.forEach((parent, box) => box && this.children[parent].push(box));
    const search = root.querySelector("input");
    search.addEventListener("input", () => this.search());
    root.querySelector("[data-do=out]").addEventListener("click", () => this.into(0));
  }

  /** Shows these sums. */
  show(sums, when, isBrushing) {
    this.least = isBrushing ? LEAST.brushing : LEAST.still;
    this.in = this.held.inBoxes(sums);
    this.root.querySelector(".at").textContent = when;
    // If the box has no live memory now, show the nearest parent that has.
    while (this.top && !this.in.bytes[this.top]) this.top = this.held.boxes.parents[this.top];
    this.into(this.top);
  }

  into(box) {
    this.top = box;
    this.draw();
    this.search();
  }

  draw() {
    this.made = new Map();
    const { parents } = this.held.boxes;
    const drawn = document.createDocumentFragment();
    const above = [];
    for (let box = this.top; box !== 0; box = parents[box]) above.unshift(parents[box]);
    above.forEach((box, depth) => this.box(drawn, box, depth, 0, 1));
    let deepest = 0;
    const todo = [[this.top, above.length, 0, 1]];
    while (todo.length) {
      const [box, depth, left, wide] = todo.pop();
      this.box(drawn, box, depth, left, wide);
      deepest = Math.max(deepest, depth);
      let at = left;
      for (const child of this.children[box]) {
        const share = (wide * this.in.bytes[child]) / (this.in.bytes[box] || 1);
        if (share > this.least) todo.push([child, depth + 1, at, share]);
        at += share;
      }
    }
    this.boxes.replaceChildren(drawn);
    this.boxes.style.height = `${(deepest + 1) * 20}px`;
  }

  name(box) {
    return this.held.names[this.held.boxes.labels[box]];
  }

  box(drawn, box, depth, left, wide) {
    const isLibrary = this.held.boxes.library[box] === 1;
    const kind = this.in.kind[box] === 255 ? 15 : this.in.kind[box];
    const colour = `var(--kind-${kind})`;
    const [name, bytes] = [this.name(box), this.in.bytes[box]];
    const made = element("div", drawn, `${name}  ${size(bytes)}`, isLibrary ? "library" : "");
    made.title = `${name}\n${size(bytes)}, ${percent(bytes, this.in.bytes[0])}, ${blocksOf(this.in.blocks[box])}`;
    made.setAttribute("role", "treeitem");
    made.tabIndex = 0;
    Object.assign(made.style, { left: `${left * 100}%`, width: `${wide * 100}%`, top: `${depth * 20}px`, background: isLibrary ? `color-mix(in srgb, ${colour} 40%, var(--paper))` : colour });
    made.classList.toggle("dark", [0, 2, 3, 10, 11, 13].includes(kind));
    made.addEventListener("click", () => this.into(box));
    made.addEventListener("keydown", (event) => event.key === "Enter" && this.into(box));
    this.made.set(box, made);
  }

  /** Marks the boxes whose names contain the text, and sums the outermost of these boxes. */
  search() {
    const wanted = this.root.querySelector("input").value.trim().toLowerCase();
    const isFound = (box) => this.in.bytes[box] > 0 && this.name(box).toLowerCase().includes(wanted);
    this.boxes.classList.toggle("searched", wanted !== "");
    let told = "";
    if (wanted) {
      const { parents } = this.held.boxes;
      let [bytes, boxes] = [0, 0];
      const within = new Uint8Array(parents.length);
      parents.forEach((parent, box) => {
        const found = isFound(box);
        if (found) boxes++;
        if (found && !within[parent]) bytes += this.in.bytes[box];
        within[box] = found || (box && within[parent]) ? 1 : 0;
        this.made.get(box)?.classList.toggle("found", found);
      });
      told = `${size(bytes)} in ${count(boxes)} boxes, ${percent(bytes, this.in.bytes[0])}`;
    }
    this.root.querySelector("output").textContent = told;
  }
}
