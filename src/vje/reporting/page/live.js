"use strict";
// A run in progress: asks the server that gave this page for the newest numbers, and for nothing else.

const EVERY = 2000;
const live = { atlas: null, map: 0 };

class Ended extends Error {}

async function ask(path) {
  try {
    return await (await fetch(path)).text();
  } catch {
    throw new Ended("the server is gone");
  }
}

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

// The first map brings its section of the page along, which the server wrote and escaped as in a report.
async function showMap(now) {
  if (now.number !== live.map) {
    const map = JSON.parse(await ask("map.json"));
    if (live.atlas) await live.atlas.renew(map);
    else {
      byId("live-map").replaceChildren(...new DOMParser().parseFromString(map.section, "text/html").body.childNodes);
      live.atlas = startMap(map);
      startGalleries(live.atlas);
    }
    live.map = now.number;
  }
  const moving = now.settled ? "" : " The images are still on their way to their places.";
  byId("live-map-when").textContent = now.number ? `As the model was after epoch ${now.epoch}.${moving}` : "";
}

async function show(now) {
  showProgress(now.progress);
  showWarnings(now.warnings);
  await drawPanels(byId("training-panels"), now.panels);
  await showMap(now.map);
}

async function follow() {
  let shown = null;
  while (true) {
    await new Promise((done) => setTimeout(done, EVERY));
    if (document.hidden) continue;
    const text = await ask("data.json");
    if (text !== shown) await show(JSON.parse(text));
    shown = text;
  }
}

async function start() {
  startTheme();
  try {
    await show(data);
    document.documentElement.dataset.ready = "yes";
    await follow();
  } catch (error) {
    if (!(error instanceof Ended)) throw error;
    const words = "Training has ended, or was stopped. This was its last state; vje report makes a page of the run.";
    byId("live-words").textContent = words;
  }
}

start();
