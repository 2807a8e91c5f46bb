"use strict";
// Puts the comparison together.

async function start() {
  startTheme();
  if (data.panels.length) await drawPanels(byId("curves"), data.panels);
  document.documentElement.dataset.ready = "yes";
}

start();
