"use strict";
// Ways to reach the images: the pointer, the keyboard, the colours, and the galleries of typical and odd ones.

function startPointer(atlas) {
  atlas.plot.on("plotly_hover", (event) => {
    if (event.points[0].curveNumber === 0) atlas.showCard(event.points[0].pointNumber);
  });
  atlas.plot.on("plotly_unhover", atlas.hideCard);
  atlas.plot.on("plotly_relayout", atlas.hideCard);
  atlas.plot.on("plotly_click", (event) => {
    if (event.points[0].curveNumber === 0) atlas.choose(event.points[0].pointNumber);
  });
}

function zoom(atlas, factor) {
  const { xaxis, yaxis } = atlas.plot._fullLayout;
  const range = ([low, high]) => {
    const [middle, half] = [(low + high) / 2, ((high - low) / 2) * factor];
    return [middle - half, middle + half];
  };
  Plotly.relayout(atlas.plot, { "xaxis.range": range(xaxis.range), "yaxis.range": range(yaxis.range) });
}

const wholeMap = (atlas) => Plotly.relayout(atlas.plot, { "xaxis.autorange": true, "yaxis.autorange": true });

// The nearest image in a direction: within 45 degrees of it, or else within 90.
function nextImage(atlas, right, up) {
  const { x, y, state } = atlas;
  if (state.at === null) return atlas.map.most[0] ?? 0;
  const found = [[Infinity, null], [Infinity, null]];
  for (let i = 0; i < x.length; i++) {
    const [dx, dy] = [x[i] - x[state.at], y[i] - y[state.at]];
    const [along, beside] = [dx * right + dy * up, Math.abs(dx * up) + Math.abs(dy * right)];
    const best = found[along >= beside ? 0 : 1];
    const distance = dx * dx + dy * dy;
    if (along > 0 && distance < best[0]) [best[0], best[1]] = [distance, i];
  }
  return found[0][1] ?? found[1][1] ?? state.at;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

function startKeyboard(atlas) {
  atlas.plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key in ARROWS) atlas.goTo(nextImage(atlas, ...ARROWS[key]));
    else if ((key === "Enter" || key === " ") && atlas.state.at !== null) atlas.choose(atlas.state.at);
    else if (key === "+" || key === "=") zoom(atlas, 0.7);
    else if (key === "-") zoom(atlas, 1 / 0.7);
    else if (key === "0") wholeMap(atlas);
    else if (key === "Escape") atlas.hideCard();
    else return;
    event.preventDefault();
  });
  atlas.plot.addEventListener("blur", atlas.hideCard);
  const number = byId("map-number");
  const wanted = () => {
    const value = Number.parseInt(number.value, 10);
    return value >= 0 && value < atlas.images.count ? value : null;
  };
  number.addEventListener("input", () => {
    number.setCustomValidity(wanted() === null && number.value ? `The images are 0 to ${atlas.images.count - 1}.` : "");
    if (wanted() !== null) atlas.goTo(wanted());
  });
  number.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && number.reportValidity() && wanted() !== null) atlas.choose(wanted());
  });
  number.addEventListener("blur", atlas.hideCard);
  byId("map-in").addEventListener("click", () => zoom(atlas, 0.6));
  byId("map-out").addEventListener("click", () => zoom(atlas, 1 / 0.6));
  byId("map-all").addEventListener("click", () => wholeMap(atlas));
}

function startColours(atlas) {
  const { state } = atlas;
  const select = byId("map-colour");
  if (atlas.images.labels) select.append(element("option", { value: "class" }, "class"));
  for (const one of atlas.images.statistics) select.append(element("option", { value: one.name }, one.title));
  select.value = state.by;
  select.addEventListener("change", () => {
    Object.assign(state, { by: select.value, only: null });
    atlas.update();
    legend();
  });

  function classButton(number, place) {
    const pressed = state.only === number;
    const dot = element("span", { class: "dot", "aria-hidden": "true" });
    dot.style.background = classColour(place, atlas.classes.length);
    const toggle = () => {
      state.only = pressed ? null : number;
      atlas.update();
      legend();
    };
    return element("button", { type: "button", "aria-pressed": String(pressed), onclick: toggle }, dot, atlas.map.classes[number]);
  }

  function scale() {
    const [low, high] = limits(atlas.images.statistics.find((one) => one.name === state.by).values);
    const bar = element("span", { class: "scale", "aria-hidden": "true" });
    bar.style.background = `linear-gradient(to right, ${SCALES[isDark() ? "dark" : "light"].join(", ")})`;
    return [element("span", {}, inWords(low)), bar, element("span", {}, inWords(high))];
  }

  function legend() {
    const many = atlas.classes.length > MOST_IN_LEGEND;
    const words = element("span", { class: "note" }, `${atlas.classes.length} classes; point at an image to see which.`);
    const classes = () => (many ? [words] : atlas.classes.map(classButton));
    refill(byId("map-legend"), state.by === "class" ? classes() : scale());
  }

  document.addEventListener("themed", legend);
  document.addEventListener("renewed", legend);
  legend();
}

function startGalleries(atlas) {
  const show = (i) => {
    atlas.choose(i);
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId("map-plot").scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  };
  function hang() {
    const { images, map } = atlas;
    const score = images.statistics.find((one) => one.name === map.typicality);
    for (const side of ["most", "least"]) {
      const tiles = map[side].map((i) =>
        images.tile(i, images.className(i) ?? map.names[i], `${score.title} ${inWords(score.values[i])}`, show));
      refill(byId(`gallery-${side}`), tiles);
    }
  }

  document.addEventListener("renewed", hang);
  hang();
}
