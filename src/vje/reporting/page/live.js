"use strict";
// A run in progress: asks the server that gave this page for the newest numbers, and for nothing else.

const EVERY = 2000;

function showWarnings(texts) {
  const none = element("p", { class: "note" }, "None.");
  const list = element("ul", { class: "warnings" }, ...texts.map((text) => element("li", {}, text)));
  byId("live-warnings").replaceChildren(texts.length ? list : none);
}

function showProgress(progress) {
  if (!progress.epochs) return;
  byId("live-bar").value = progress.done;
  const speed = Math.round(progress.images_per_second).toLocaleString("en");
  const words = `Epoch ${progress.epoch} of ${progress.epochs}, ${speed} images a second, ${progress.left} left`;
  if (byId("live-words").textContent !== words) byId("live-words").textContent = words;
}

async function show(now) {
  showProgress(now.progress);
  showWarnings(now.warnings);
  await drawPanels(byId("training-panels"), now.panels);
}

async function follow() {
  let shown = JSON.stringify(data);
  while (true) {
    await new Promise((done) => setTimeout(done, EVERY));
    if (document.hidden) continue;
    try {
      const text = await (await fetch("data.json")).text();
      if (text !== shown) await show(JSON.parse(text));
      shown = text;
    } catch {
      byId("live-words").textContent = "Training has ended, or was stopped. This was its last state.";
      return;
    }
  }
}

async function start() {
  startTheme();
  await show(data);
  document.documentElement.dataset.ready = "yes";
  await follow();
}

start();
