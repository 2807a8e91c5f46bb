"use strict";
// A run in progress: asks the server that gave this page for the newest numbers, until they are the last.

const EVERY = 2000;
const live = { atlas: null, map: 0 };

class Gone extends Error {}

async function ask(path) {
  let text;
  try {
    text = await (await fetch(path)).text();
  } catch {
    throw new Gone("the server is gone");
  }
  return JSON.parse(text);
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

function showEnd({ status, words }) {
  document.title = `${data.name}: ${status}`;
  byId("live-status").textContent = status;
  byId("live-words").textContent = words;
}

// The first map brings its section of the page along, which the server wrote and escaped as in a report.
async function showMap(map, now) {
  if (map && live.atlas) await live.atlas.renew(map);
  else if (map) {
    byId("live-map").replaceChildren(...new DOMParser().parseFromString(map.section, "text/html").body.childNodes);
    live.atlas = startMap(map);
    startGalleries(live.atlas);
  }
  const moving = now.settled ? "" : " The images do not have their new places yet.";
  byId("live-map-when").textContent = now.number ? `As the model was after epoch ${now.epoch}.${moving}` : "";
}

// The map is fetched before anything is drawn, as the server may be about to stop.
async function show(now) {
  const map = now.map.number !== live.map ? await ask("map.json") : null;
  if (map) live.map = map.number;
  showProgress(now.progress);
  if (now.ended) showEnd(now.ended);
  showWarnings(now.warnings);
  await drawPanels(byId("training-panels"), now.panels);
  await showMap(map, now.map);
}

async function follow() {
  let [now, shown] = [data, null];
  while (!now.ended) {
    await new Promise((done) => setTimeout(done, EVERY));
    now = await ask("data.json");
    const text = JSON.stringify(now);
    if (text === shown || (document.hidden && !now.ended)) continue;
    await show(now);
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
    if (!(error instanceof Gone)) throw error;
    const words = "Training has ended, or was stopped. This was its last state; vje report makes a page of the run.";
    showEnd({ status: "ended, or stopped", words });
  }
}

start();
