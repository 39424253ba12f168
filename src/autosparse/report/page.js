"use strict";
// Hover values, and legend buttons that hide and show a series. The page is complete without it.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const text = (value, unit) => unit === "%" ? value.toFixed(2) + " %" : String(Number(value.toPrecision(4)));

  // rows: [colour, name, value]; all texts go in as text, never as markup
  function show(event, title, rows) {
    const head = document.createElement("b");
    head.textContent = title;
    const lines = rows.map(([colour, name, value]) => {
      const line = document.createElement("div"), sign = document.createElement("i");
      const label = document.createElement("span"), number = document.createElement("span");
      sign.style.background = colour;
      label.textContent = name;
      number.textContent = value;
      line.append(sign, label, number);
      return line;
    });
    tip.replaceChildren(head, ...lines);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 16;
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + gap, innerHeight - box.height - 4)) + "px";
  }

  function follow(area, move, helper) {
    const leave = () => { tip.hidden = true; if (helper) helper.hidden = true; };
    area.addEventListener("pointermove", move);
    area.addEventListener("pointerdown", move);
    area.addEventListener("pointerleave", leave);
    addEventListener("scroll", leave, {passive: true});
    if (helper) { helper.hidden = true; area.append(helper); }
  }

  const made = name => { const element = document.createElement("div"); element.className = name; return element; };
  const nearest = (values, wanted) =>
    values.reduce((best, value, place) => Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? place : best, 0);

  function lines(figure, data, hidden) {
    const area = figure.querySelector(".area"), hair = made("hair");
    const [left, right] = data.x, [low, high] = data.y;
    const up = value => data.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    follow(area, event => {
      const box = area.getBoundingClientRect();
      const wanted = left + (right - left) * (event.clientX - box.left) / box.width;
      const across = [...new Set(data.s.flatMap((one, place) => hidden.has(place) ? [] : one.x))];
      if (!across.length) return;
      const x = across[nearest(across, wanted)];
      const height = 1 - (event.clientY - box.top) / box.height;
      let found = data.s.map((one, place) => [place, one, one.y[one.x.indexOf(x)]])
        .filter(([place, , value]) => value !== undefined && value !== null && !hidden.has(place));
      if (found.length > 8) found = [found[nearest(found.map(([, , value]) => up(value)), height)]];
      else found.sort((one, other) => other[2] - one[2]);
      hair.hidden = false;
      hair.style.left = 100 * (x - left) / (right - left) + "%";
      show(event, data.xl + " " + x, found.map(([place, one, value]) => [data.c[place], one.n, text(value, data.u)]));
    }, hair);
  }

  function rows(figure, data, hidden) {
    const area = figure.querySelector(".area"), band = made("band");
    band.style.height = 100 / data.r.length + "%";
    follow(area, event => {
      const box = area.getBoundingClientRect();
      const place = Math.floor((event.clientY - box.top) / box.height * data.r.length), row = data.r[place];
      if (!row) return;
      band.hidden = false;
      band.style.top = 100 * place / data.r.length + "%";
      const found = row.v.map((value, mark) => [data.c[mark], data.m[mark], value, mark])
        .filter(([, , value, mark]) => value !== null && !hidden.has(mark))
        .map(([colour, name, value]) => [colour, name, text(value, data.u)]);
      if (row.b !== null) found.push(["var(--pale)", data.bn, text(row.b, data.u)]);
      show(event, row.n, found);
    }, band);
  }

  function points(figure, data, hidden) {
    const area = figure.querySelector(".area");
    follow(area, event => {
      const box = area.getBoundingClientRect();
      const distance = ([, group, x, y]) => hidden.has(group) ? Infinity : Math.hypot(
        box.left + box.width * (x - data.x[0]) / (data.x[1] - data.x[0]) - event.clientX,
        box.bottom - box.height * (y - data.y[0]) / (data.y[1] - data.y[0]) - event.clientY);
      const place = nearest(data.p.map(distance), 0);
      if (distance(data.p[place]) > 40) { tip.hidden = true; return; }
      const here = data.p.filter(point => distance(point) <= distance(data.p[place]) + 5);
      const [name, group, x, y] = data.p[place], colour = data.c[group];
      if (here.length === 1) show(event, name, [[colour, data.yl, text(y, data.u)], [colour, data.xl, text(x, data.u)]]);
      else show(event, here.length + " runs: " + data.yl + " at " + data.xl,
        here.slice(0, 12).map(([one, of, a, b]) => [data.c[of], one, text(b, data.u) + " at " + text(a, data.u)]));
    });
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const hidden = new Set(), keys = [...figure.querySelectorAll(".key")];
    const marks = [...figure.querySelectorAll("g[data-series]")];
    const refresh = () => {
      for (const mark of marks) mark.classList.toggle("off", hidden.has(Number(mark.dataset.series)));
      for (const key of keys) key.setAttribute("aria-pressed", String(!hidden.has(Number(key.dataset.series))));
    };
    for (const key of keys) {
      const own = Number(key.dataset.series);
      key.title = "click: hide or show; double click: only this one, or all";
      key.addEventListener("click", () => { hidden.has(own) ? hidden.delete(own) : hidden.add(own); refresh(); });
      key.addEventListener("dblclick", () => {
        const others = keys.map((_, place) => place).filter(place => place !== own);
        const alone = others.every(place => hidden.has(place));
        hidden.clear();
        if (!alone) others.forEach(place => hidden.add(place));
        refresh();
      });
      const fade = on => marks.forEach(mark => mark.classList.toggle("faded", on && Number(mark.dataset.series) !== own));
      key.addEventListener("pointerenter", () => fade(true));
      key.addEventListener("pointerleave", () => fade(false));
    }
    ({lines, rows, points})[figure.dataset.kind](figure, data, hidden);
  }
})();
