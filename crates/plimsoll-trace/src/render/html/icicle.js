// What is held, by stack: boxes of which the width is bytes.

class Icicle {
  constructor(root, data) {
    this.root = root;
    this.boxes = root.querySelector(".boxes");
    this.names = data.names;
    for (const name of ["parents", "labels", "bytes", "blocks"]) this[name] = words(data[name]);
    this.looks = octets(data.looks);
    this.children = Array.from(this.parents, () => []);
    this.parents.forEach((parent, box) => box && this.children[parent].push(box));
    this.top = 0;
    const search = root.querySelector("input");
    search.addEventListener("input", () => this.search(search.value));
    root.querySelector("[data-do=out]").addEventListener("click", () => this.into(0));
    this.draw();
  }

  into(box) {
    this.top = box;
    this.draw();
    this.search(this.root.querySelector("input").value);
  }

  draw() {
    this.boxes.replaceChildren();
    this.made = new Map();
    const above = [];
    for (let box = this.top; box !== 0; box = this.parents[box]) above.unshift(this.parents[box]);
    above.forEach((box, depth) => this.box(box, depth, 0, 1));
    let deepest = 0;
    const todo = [[this.top, above.length, 0, 1]];
    while (todo.length) {
      const [box, depth, left, wide] = todo.pop();
      this.box(box, depth, left, wide);
      deepest = Math.max(deepest, depth);
      let at = left;
      for (const child of this.children[box]) {
        const share = (wide * this.bytes[child]) / (this.bytes[box] || 1);
        if (share > 0.0008) todo.push([child, depth + 1, at, share]);
        at += share;
      }
    }
    this.boxes.style.height = `${(deepest + 1) * 20}px`;
  }

  box(box, depth, left, wide) {
    const [kind, isLibrary] = [this.looks[box] & 15, this.looks[box] > 15];
    const colour = `var(--kind-${kind})`;
    const name = this.names[this.labels[box]];
    const bytes = this.bytes[box] * GRAIN;
    const made = element("div", this.boxes, `${name}  ${size(bytes)}`, isLibrary ? "library" : "");
    made.title = `${name}\n${size(bytes)}, ${percent(bytes, this.bytes[0] * GRAIN)}, ${count(this.blocks[box])} blocks`;
    made.setAttribute("role", "treeitem");
    made.tabIndex = 0;
    Object.assign(made.style, { left: `${left * 100}%`, width: `${wide * 100}%`, top: `${depth * 20}px`, background: isLibrary ? `color-mix(in srgb, ${colour} 40%, var(--paper))` : colour });
    made.classList.toggle("dark", [0, 2, 3].includes(kind));
    made.addEventListener("click", () => this.into(box));
    made.addEventListener("keydown", (event) => event.key === "Enter" && this.into(box));
    this.made.set(box, made);
  }

  /** Marks what a text is found in, and sums the outermost of them. */
  search(text) {
    const wanted = text.trim().toLowerCase();
    const isFound = (box) => wanted !== "" && this.names[this.labels[box]].toLowerCase().includes(wanted);
    let [bytes, boxes] = [0, 0];
    const within = new Uint8Array(this.parents.length);
    this.parents.forEach((parent, box) => {
      const found = isFound(box);
      if (found) boxes++;
      if (found && !within[parent]) bytes += this.bytes[box] * GRAIN;
      within[box] = found || (box && within[parent]) ? 1 : 0;
      this.made.get(box)?.classList.toggle("found", found);
    });
    this.boxes.classList.toggle("searched", wanted !== "");
    const told = wanted === "" ? "" : `${size(bytes)} in ${count(boxes)} boxes, ${percent(bytes, this.bytes[0] * GRAIN)}`;
    this.root.querySelector("output").textContent = told;
  }
}
