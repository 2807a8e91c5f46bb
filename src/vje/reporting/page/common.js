"use strict";
// What every page uses: its data, elements made without markup, colours that follow the theme, and the list of charts.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Texts from data only ever become text nodes and attributes, so that no name can turn into markup.
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// Gives a container other contents; the keyboard stays at the same place in it.
function refill(container, children) {
  const buttons = () => [...container.querySelectorAll("button")];
  const place = buttons().indexOf(document.activeElement);
  container.replaceChildren(...children);
  if (place >= 0) buttons()[place]?.focus({ preventScroll: true });
}

const KINDS = { float32: Float32Array, int32: Int32Array, uint16: Uint16Array, uint8: Uint8Array };

function numbers(packed) {
  const text = atob(packed.bytes);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new KINDS[packed.kind](bytes.buffer);
}

function inWords(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return (size !== 0 && size < 0.001 ? value.toExponential(1) : value.toFixed(digits)).replace("-", "\u2212");
}

// A text for Plotly, which takes some tags and entities in names and titles for markup.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// Theme: the system's, until the button is pressed.

const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (wantsDark.matches ? "dark" : "light")) === "dark";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function remember(theme) {
  try {
    if (theme) localStorage.setItem("vje-theme", theme);
    return localStorage.getItem("vje-theme");
  } catch {
    return null; // some browsers keep nothing for local files
  }
}

function applyTheme(theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  byId("theme").setAttribute("aria-pressed", String(isDark()));
}

function startTheme() {
  applyTheme(remember());
  byId("theme").addEventListener("click", () => {
    applyTheme(remember(isDark() ? "light" : "dark") || (isDark() ? "light" : "dark"));
    redraw();
  });
  wantsDark.addEventListener("change", () => {
    applyTheme();
    redraw();
  });
}

// Charts: each is a function from the present colours to traces and layout, so that a theme redraws them all.

const charts = new Map();
const SETTINGS = { displayModeBar: false, responsive: true, displaylogo: false };

function baseLayout() {
  const axis = {
    gridcolor: colour("line"), zerolinecolor: colour("faint"), linecolor: colour("faint"), automargin: true,
    tickfont: { size: 11, color: colour("quiet") }, nticks: 6, fixedrange: true,
  };
  const family = getComputedStyle(document.body).fontFamily;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family, size: 12, color: colour("ink") },
    margin: { l: 46, r: 10, t: 26, b: 36 }, xaxis: { ...axis }, yaxis: { ...axis },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("faint"), font: { family, size: 12, color: colour("ink") } },
    hovermode: "x unified", dragmode: false, uirevision: "kept",
  };
}

function draw(node, build, settings = SETTINGS) {
  charts.set(node, { build, settings });
  const { traces, layout } = build();
  return Plotly.react(node, traces, layout, settings);
}

function redraw() {
  for (const [node, { build, settings }] of charts) draw(node, build, settings);
  document.dispatchEvent(new Event("themed"));
}

const nextFrame = () => new Promise((done) => setTimeout(done, 0));
