"use strict";
// The images of the map: cut from the sheets, and described in words.

function openImages(map) {
  const { side, stride, columns, sheets } = map.pictures;
  const decoded = new Map();
  const statistics = map.statistics.map((one) => ({ ...one, values: numbers(one.values) }));
  const labels = map.labels ? numbers(map.labels) : null;

  function sheet(number) {
    if (!decoded.has(number)) {
      const image = new Image();
      image.src = `data:image/webp;base64,${sheets[number]}`;
      decoded.set(number, image.decode().then(() => image));
    }
    return decoded.get(number);
  }

  const className = (i) => (labels ? map.classes[labels[i]] : null);
  const described = (i) => (labels ? `image ${i}, class ${className(i)}` : `image ${i}, ${map.names[i]}`);

  function picture(i) {
    const canvas = element("canvas", { class: "picture", width: side, height: side, role: "img", "aria-label": described(i) });
    if (side <= 32) canvas.classList.add("small");
    const place = i % columns ** 2;
    const [x, y] = [(place % columns) * stride, Math.floor(place / columns) * stride];
    sheet(Math.floor(i / columns ** 2)).then((image) => {
      canvas.getContext("2d").drawImage(image, x, y, side, side, 0, 0, side, side);
      canvas.dataset.drawn = "yes";
    });
    return canvas;
  }

  // Picture, class, name and every statistic of an image.
  function details(i) {
    const list = element("dl");
    for (const one of statistics) list.append(element("dt", {}, one.title), element("dd", {}, inWords(one.values[i])));
    const title = labels ? `class ${className(i)}` : `image ${i}`;
    return [
      picture(i), element("p", { class: "what" }, title),
      element("p", { class: "name" }, labels ? `image ${i} (${map.names[i]})` : map.names[i]), list,
    ];
  }

  // A picture that can be pressed, with two lines under it.
  function tile(i, first, second, action) {
    return element(
      "button", { type: "button", class: "tile", "aria-label": `${described(i)}, ${second}`, "data-image": i, onclick: () => action(i) },
      picture(i), element("span", {}, first), element("span", {}, second),
    );
  }

  return { count: map.count, statistics, labels, className, described, picture, details, tile };
}
