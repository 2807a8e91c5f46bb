"use strict";
// The map: one WebGL point an image; hover, click, colours, zoom and the keyboard.

const CLASS_COLOURS = [
  "#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#8a8f98",
];
const SCALES = {
  light: ["#440154", "#3b528b", "#21918c", "#5ec962", "#d9c410"],
  dark: ["#7b5cd6", "#5b8fd6", "#2fb5ac", "#84dd74", "#fde725"],
};
const MOST_IN_LEGEND = 30;

// Asked once, and given back: a browser takes away the oldest of sixteen contexts, which would be the map's own.
const HAS_WEBGL = (() => {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("webgl2") || canvas.getContext("webgl");
  context?.getExtension("WEBGL_lose_context")?.loseContext();
  return Boolean(context);
})();

function classColour(number, count) {
  if (count <= CLASS_COLOURS.length) return CLASS_COLOURS[number % CLASS_COLOURS.length];
  const hue = (number * 137.508) % 360; // the golden angle keeps neighbours in the list apart
  return `hsl(${hue.toFixed(0)}, 60%, ${number % 2 ? 45 : 62}%)`;
}

function limits(values) {
  const known = Float32Array.from(values).filter(Number.isFinite).sort();
  if (!known.length) return [0, 1];
  const at = (share) => known[Math.round(share * (known.length - 1))];
  return [at(0.02), Math.max(at(0.98), at(0.02) + 1e-9)];
}

function startMap(first) {
  const plot = byId("map-plot");
  const state = { by: first.labels ? "class" : first.typicality, only: null, at: null, chosen: null };
  const size = first.count > 5000 ? 4 : first.count > 1000 ? 5 : 8;
  const atlas = { plot, state };

  function take(map) {
    const [neighbours, similarity] = [numbers(map.neighbours), numbers(map.similarity)];
    const classes = map.labels ? Object.keys(map.classes).map(Number) : [];
    Object.assign(atlas, { map, images: openImages(map), x: numbers(map.x), y: numbers(map.y) });
    Object.assign(atlas, { neighbours, similarity, classes });
  }

  function markers() {
    const { images, classes } = atlas;
    const base = { size, opacity: 0.85, line: { width: 0 } };
    if (state.by === "class") {
      const rank = new Map(classes.map((number, place) => [number, classColour(place, classes.length)]));
      const rest = colour("faint");
      const shown = (label) => (state.only === null || state.only === label ? rank.get(label) : rest);
      return { ...base, color: Array.from(images.labels, shown), showscale: false };
    }
    const values = images.statistics.find((one) => one.name === state.by).values;
    const [cmin, cmax] = limits(values);
    const colours = SCALES[isDark() ? "dark" : "light"];
    const colorscale = colours.map((one, place) => [place / (colours.length - 1), one]);
    return { ...base, color: values, cmin, cmax, colorscale, showscale: false };
  }

  const near = (i) => Array.from(atlas.neighbours.subarray(i * atlas.map.each, (i + 1) * atlas.map.each));
  const ring = (rows, width, diameter) => ({
    x: rows.map((i) => atlas.x[i]), y: rows.map((i) => atlas.y[i]), type: "scatter", mode: "markers", hoverinfo: "skip",
    marker: { size: diameter, color: "rgba(0,0,0,0)", line: { color: colour("ink"), width } },
  });

  function build() {
    const layout = baseLayout();
    const axis = (name) => {
      const now = plot._fullLayout?.[name]; // stays where it was zoomed to
      const place = now && !now.autorange ? { range: [...now.range], autorange: false } : { autorange: true };
      return { visible: false, fixedrange: false, ...place };
    };
    Object.assign(layout, {
      margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "pan", hovermode: "closest", showlegend: false, hoverdistance: 12,
      xaxis: axis("xaxis"), yaxis: { ...axis("yaxis"), scaleanchor: "x" },
    });
    const points = {
      x: atlas.x, y: atlas.y, type: HAS_WEBGL ? "scattergl" : "scatter", mode: "markers", marker: markers(),
      hoverinfo: "none",
    };
    const chosen = state.chosen === null ? [] : [state.chosen];
    const cursor = state.at === null || state.at === state.chosen ? [] : [state.at];
    const rings = [ring(chosen.flatMap(near), 1.5, size + 6), ring(chosen, 2.5, size + 10), ring(cursor, 1.5, size + 10)];
    return { traces: [points, ...rings], layout };
  }

  const update = () => draw(plot, build, { ...SETTINGS, scrollZoom: true });

  // Where an image is on the screen, in pixels from the plot's corner.
  function pixel(i) {
    const { x, y } = atlas;
    const { xaxis, yaxis } = plot._fullLayout;
    const share = (value, [low, high]) => (value - low) / (high - low);
    return [share(x[i], xaxis.range) * plot.clientWidth, (1 - share(y[i], yaxis.range)) * plot.clientHeight];
  }

  const card = byId("map-card");
  function showCard(i) {
    card.replaceChildren(...atlas.images.details(i));
    card.hidden = false;
    card.dataset.image = i;
    const [left, top] = pixel(i);
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    const within = (place, length, whole) => Math.max(4, Math.min(place, whole - length - 4));
    const after = (place, length, whole) => (place + 14 + length <= whole ? place + 14 : place - 14 - length);
    let [across, down] = [after(left, width, plot.clientWidth), top - 20];
    if (across < 0) [across, down] = [left - width / 2, after(top, height, plot.clientHeight)]; // above or below, on a phone
    card.style.left = `${within(across, width, plot.clientWidth)}px`;
    card.style.top = `${within(down, height, plot.clientHeight)}px`;
  }
  const hideCard = () => { card.hidden = true; };

  function listNeighbours(i) {
    const { map, images, similarity } = atlas;
    const list = element("ol", { class: "tiles" });
    near(i).forEach((other, place) => {
      const cosine = similarity[i * map.each + place].toFixed(3);
      const first = images.className(other) ?? other;
      list.append(element("li", {}, images.tile(other, first, cosine, choose)));
    });
    byId("map-chosen").dataset.image = i;
    refill(byId("map-chosen"), [
      ...images.details(i), element("h3", {}, "Nearest neighbours"),
      element("p", { class: "note" }, `By cosine of ${map.space}; under each its class and the cosine.`), list,
    ]);
  }

  function choose(i) {
    Object.assign(state, { chosen: i, at: i });
    byId("map-number").value = i;
    listNeighbours(i);
    hideCard(); // what it says stands beside the map now, and the rings are under it
    say(`${atlas.images.described(i)} chosen; ${near(i).length} neighbours are listed`);
    update();
  }

  const say = (text) => { byId("map-said").textContent = text; };
  function goTo(i) {
    state.at = i;
    byId("map-number").value = i;
    update();
    showCard(i);
    const values = atlas.images.statistics.slice(0, 3).map((one) => `${one.title} ${inWords(one.values[i])}`);
    say(`${atlas.images.described(i)}; ${values.join(", ")}`);
  }

  // The same images as a model that has learned on sees them: what was chosen, the colours and the zoom stay.
  async function renew(map) {
    const held = [plot, byId("map-number")].includes(document.activeElement) && Number(card.dataset.image) === state.at;
    const again = held && !card.hidden;
    take(map);
    hideCard(); // the point has left the pointer, but not the keyboard
    if (state.chosen !== null) listNeighbours(state.chosen);
    document.dispatchEvent(new Event("renewed"));
    await update();
    if (again) showCard(state.at);
  }

  Object.assign(atlas, { near, pixel, choose, goTo, showCard, hideCard, update, renew });
  take(first);
  update();
  startPointer(atlas);
  startKeyboard(atlas);
  startColours(atlas);
  return atlas;
}
