"use strict";
(() => {
  const find = (name) => document.querySelector(name);
  const { columns, items } = JSON.parse(find("#items").textContent);
  const map = find(".map svg"), card = find(".card"), ring = find(".ring"), ties = find(".ties");
  let current = -1;

  // Data only becomes text nodes: nothing from it is read as HTML.
  const add = (parent, tag, text = "") => {
    const made = Object.assign(document.createElement(tag), { textContent: text, dir: "auto" });
    parent.append(made);
    return made;
  };
  const picture = (parent, item) => {
    if (item.image) Object.assign(add(parent, "img"), { src: item.image, alt: "" });
  };
  const show = (index) => {
    if (index === current) return;
    current = index;
    const item = items[index], all = document.createElement("div");
    const near = item.near ?? [...items.keys()].filter((i) => items[i].near?.includes(index));
    add(all, "h3", item.id);
    picture(all, item);
    add(all, "p", (item.why ? item.why + "; " : "") + item.state + ".");
    const list = add(all, "dl");
    item.text.forEach((text, i) => {
      if (text) add(list, "dt", columns[i]), add(list, "dd", text);
    });
    if (near.length) add(all, "p", item.near ? "Represents, among others:" : "Represented in the batch by:");
    const others = add(all, "ul");
    for (const i of near) {
      const other = Number.isInteger(i) ? items[i] : { id: i + " (not on the map)" };
      const line = add(others, "li");
      picture(line, other);
      add(line, "bdi", other.id);
    }
    card.replaceChildren(all);
    const ends = near.filter(Number.isInteger).map((i) => items[i]);
    const line = (end) => `M${item.x} ${item.y}L${end.x} ${end.y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0`;
    ties.setAttribute("d", ends.map(line).join(""));
    ring.setAttribute("d", `M${item.x} ${item.y}m-12 0a12 12 0 1 0 24 0a12 12 0 1 0-24 0`);
  };
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    let best = -1, least = 16;
    items.forEach((item, i) => {
      // Marks of the batch are larger, so they react from farther away.
      const far = Math.hypot(item.x - at.x, item.y - at.y) - (item.why ? 8 : 0);
      if (far < least) [best, least] = [i, far];
    });
    if (best >= 0) show(best);
  };
  for (const kind of ["pointermove", "pointerdown"]) map.addEventListener(kind, point);
  map.addEventListener("focus", () => { if (current < 0 && map.matches(":focus-visible")) show(0); });
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((Math.max(current, 0) + step + items.length) % items.length);
  });
})();
