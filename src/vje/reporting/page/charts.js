"use strict";
// Line charts: training over epochs, ROC curves and densities.

const line = (number) => colour(`s${(number % 7) + 1}`);
const DASHES = ["solid", "dash", "dot"];

function frame(container, key, title, label) {
  let figure = [...container.children].find((child) => child.dataset.key === key);
  if (!figure) {
    figure = element("figure", { class: "panel", "data-key": key }, element("figcaption", {}, title));
    figure.append(element("div", { class: "plot", role: "img" }));
    container.append(figure);
  }
  const plot = figure.querySelector(".plot");
  plot.setAttribute("aria-label", label);
  return plot;
}

function describeLines(panel) {
  const ends = panel.lines.map((one) => {
    const known = one.y.filter((value) => value !== null);
    return `${one.name} from ${inWords(known[0])} to ${inWords(known[known.length - 1])}`;
  });
  return `${panel.title} over epochs: ${ends.join("; ")}`;
}

function curveChart(panel) {
  const layout = baseLayout();
  layout.xaxis.title = { text: "epoch", font: { size: 11, color: colour("quiet") }, standoff: 6 };
  const epochs = panel.lines.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]);
  if (Math.max(...epochs) - Math.min(...epochs) < 8) layout.xaxis.dtick = 1; // there is no half epoch
  layout.yaxis.tickformat = "~g";
  if (panel.title.endsWith("(%)")) layout.yaxis.autorangeoptions = { clipmin: 0, clipmax: 100 };
  layout.showlegend = panel.lines.length > 1;
  if (!layout.showlegend) layout.margin.t = 8;
  const traces = panel.lines.map((one, number) => ({
    x: one.x, y: one.y, name: plain(one.name), type: "scatter", mode: one.x.length < 25 ? "lines+markers" : "lines",
    line: { color: line(number), width: 2, dash: DASHES[Math.floor(number / 7) % 3] }, marker: { size: 5 },
    cliponaxis: Boolean(one.std), // what lies on the edge is drawn whole, but no bar goes beyond it
    hovertemplate: "%{y:.4~g}", error_y: one.std ? { array: one.std, thickness: 1, width: 2 } : undefined,
  }));
  return { traces, layout };
}

async function drawPanels(container, panels) {
  for (const panel of panels) {
    const plot = frame(container, panel.title, panel.title, describeLines(panel));
    draw(plot, () => curveChart(panel));
    await nextFrame(); // the page answers between one chart and the next
  }
}

function rocChart(set) {
  const layout = baseLayout();
  const small = { size: 11, color: colour("quiet") };
  Object.assign(layout.xaxis, { title: { text: "in-distribution images flagged", font: small, standoff: 6 }, range: [-0.01, 1] });
  Object.assign(layout.yaxis, { title: { text: "others caught", font: small, standoff: 6 }, range: [0, 1.02] });
  Object.assign(layout, { hovermode: "closest", margin: { l: 46, r: 10, t: 8, b: 36 } });
  layout.legend = { x: 1, y: 0.02, xanchor: "right", yanchor: "bottom", font: { size: 11 }, bgcolor: `${colour("paper")}cc` };
  const traces = set.roc.map((one, number) => ({
    x: one.false_alarms, y: one.hits, type: "scatter", mode: "lines", name: plain(`${one.name} ${one.auroc.toFixed(1)}`),
    line: { color: line(number), width: 2 }, hovertemplate: "%{y:.1%} caught, %{x:.1%} flagged",
  }));
  traces.push({
    x: [0, 1], y: [0, 1], type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip",
    line: { color: colour("faint"), width: 1, dash: "dot" },
  });
  return { traces, layout };
}

function densityChart(set, score) {
  const layout = baseLayout();
  layout.xaxis.title = { text: plain(score), font: { size: 11, color: colour("quiet") }, standoff: 6 };
  Object.assign(layout.yaxis, { showticklabels: false, rangemode: "tozero" });
  const { edges, inside, outside } = set.density;
  const traces = [["in-distribution", inside, 0], [set.name, outside, 1]].map(([name, heights, number]) => ({
    x: edges, y: [...heights, heights[heights.length - 1]], name: plain(name), type: "scatter", mode: "lines", fill: "tozeroy",
    line: { color: line(number), width: 1.5, shape: "hv" }, hovertemplate: "%{y:.3~g}",
  }));
  return { traces, layout };
}

async function drawOod(container, ood) {
  for (const set of ood.sets) {
    const pair = element("div", { class: "pair" });
    container.append(element("h3", {}, set.name), pair);
    const areas = set.roc.map((one) => `${one.name} ${one.auroc.toFixed(1)}`).join(", ");
    const roc = frame(pair, "roc", "ROC, with the area in percent", `ROC curves against ${set.name}; areas in percent: ${areas}`);
    const density = frame(pair, "density", `Density of ${ood.score}`, `Densities of ${ood.score}, in-distribution and ${set.name}`);
    draw(roc, () => rocChart(set)); // once both have their places, and so their widths
    draw(density, () => densityChart(set, ood.score));
    await nextFrame();
  }
}
