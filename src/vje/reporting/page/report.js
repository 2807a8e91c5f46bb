"use strict";
// Puts a run's report together: the map first, since it is what one plays with.

async function start() {
  startTheme();
  if (data.map) {
    startGalleries(startMap(data.map));
    await nextFrame();
  }
  if (byId("training-panels")) await drawPanels(byId("training-panels"), data.panels);
  if (data.ood) await drawOod(byId("ood-panels"), data.ood);
  document.documentElement.dataset.ready = "yes";
}

start();
