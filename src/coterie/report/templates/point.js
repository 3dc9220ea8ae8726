// The point that the pointer is near, or that arrow keys reached, says whose it is; without scripts titles do.
const tip = document.body.appendChild(Object.assign(document.createElement("p"), { className: "tip", role: "status", hidden: true }));
let shown = null;
const hide = () => { shown?.classList.remove("shown"); shown = null; tip.hidden = true; };
const show = point => {
  if (point === shown) return;
  hide();
  shown = point;
  point.classList.add("shown");
  tip.textContent = point.dataset.said;
  tip.hidden = false;
  const box = point.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - size.width - 8;
  const above = Math.max(box.top, point.ownerSVGElement.getBoundingClientRect().top) - size.height - 8;
  tip.style.left = `${scrollX + Math.max(8, Math.min(box.left + (box.width - size.width) / 2, room))}px`;
  tip.style.top = `${scrollY + Math.max(8, above)}px`;
};
for (const svg of document.querySelectorAll("svg:has(title)")) {
  const points = [...svg.querySelectorAll(":has(> title)")];
  for (const point of points) {
    point.dataset.said = point.firstChild.textContent;
    point.firstChild.remove();
  }
  const near = event => {
    for (const far of [0, 4, 8]) for (const [x, y] of [[0, 0], [far, 0], [-far, 0], [0, far], [0, -far]]) {
      const hit = document.elementFromPoint(event.clientX + x, event.clientY + y);
      if (hit?.ownerSVGElement === svg && hit.dataset.said) return hit;
    }
  };
  const seek = event => { const hit = near(event); hit ? show(hit) : hide(); };
  svg.addEventListener("pointermove", seek);
  svg.addEventListener("pointerdown", seek);
  svg.addEventListener("pointerleave", event => event.pointerType === "mouse" && hide());
  svg.tabIndex = 0;
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(points[0]));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(points[(points.indexOf(shown) + step + points.length) % points.length]);
  });
}
