"use strict";
// Everything works on what is inside the page: no request, no storage, nothing global.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);

  const element = (parent, name, attributes = {}, text = "") => {
    const made = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const SVG_NAMES = new Set(["svg", "g", "path", "line", "rect", "text", "clipPath", "circle"]);

  // --- tables ------------------------------------------------------------------------------------------------------

  const sortKey = (cell) => (cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value));

  const compare = (one, other) => {
    if (typeof one === typeof other) return typeof one === "number" ? one - other : one.localeCompare(other);
    return typeof one === "number" ? -1 : 1;
  };

  for (const table of document.querySelectorAll("table.sorted")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, index) => {
      heading.querySelector("button").addEventListener("click", () => {
        const falling = heading.getAttribute("aria-sort") === "ascending";
        for (const each of headings) each.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[index]), row]);
        // What has no number stays at the end, whichever way the numbers run.
        const sign = (one, other) => (falling && typeof one === typeof other ? -1 : 1);
        rows.sort(([one], [other]) => sign(one, other) * compare(one, other));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  // --- commands ----------------------------------------------------------------------------------------------------

  for (const box of document.querySelectorAll("pre")) {
    const command = box.textContent;
    const button = element(box, "button", { type: "button", class: "copy" }, "copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command);
        button.textContent = "copied";
      } catch { // a browser that refuses: the command is selected instead
        getSelection().setBaseAndExtent(box.firstChild, 0, box.firstChild, command.length);
      }
    });
  }

  // --- curves ------------------------------------------------------------------------------------------------------

  const HEIGHT = 270;
  const MARGIN = { top: 8, right: 12, bottom: 38, left: 48 };
  const LABEL = 13; // pixels that a line's name takes in height
  const LEADER = 16; // pixels from the end of a line to its name

  const decimalsOf = (step) => {
    const power = Math.floor(Math.log10(step) + 1e-9);
    const isWhole = Math.abs(step / 10 ** power - 2.5) > 0.01; // steps of 2.5 take one digit more
    return Math.max(0, Math.min(9, (isWhole ? 0 : 1) - power));
  };

  // With as many digits as the step has, so that no two ticks read alike.
  const inShort = (value, step) => {
    for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${Number((value / size).toFixed(decimalsOf(step / size)))}${sign}`;
    }
    return value.toFixed(decimalsOf(step));
  };

  // The multiples of a round step between two ends, each with its text.
  const ticks = (low, high, wanted, least = 0) => {
    const rough = Math.max((high - low) / wanted, least);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((part) => part >= rough * 0.999);
    const values = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) values.push(n * step);
    return values.map((value) => [value, inShort(value, step)]);
  };

  // Ticks between two powers of ten: 1, 2 and 5 of each, or evenly where the ends are less than a factor of ten apart.
  const factors = (low, high) => {
    if (high - low < 1) return ticks(10 ** low, 10 ** high, 6).map(([value, text]) => [Math.log10(value), text]);
    const values = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      for (const part of high - low > 3 ? [1] : [1, 2, 5]) values.push([part * 10 ** power, 10 ** power]);
    }
    return values.map(([value, step]) => [Math.log10(value), inShort(value, step)])
      .filter(([place]) => place >= low && place <= high);
  };

  const readable = (value) => (value && Math.abs(value) < 0.1 ? value.toPrecision(3) : value.toFixed(3));

  const pen = document.createElement("canvas").getContext("2d");
  const widthOf = (text) => {
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  };

  // The places closest to the wanted ones, in the same order, at least a gap apart: isotonic regression of the places
  // less k gaps, by pooling adjacent violators.
  const spread = (wanted, gap, low, high) => {
    const order = wanted.map((_, index) => index).sort((one, other) => wanted[one] - wanted[other]);
    const mean = (pool) => pool.reduce((sum, value) => sum + value, 0) / pool.length;
    const pools = [];
    order.forEach((index, k) => {
      pools.push([wanted[index] - k * gap]);
      while (pools.length > 1 && mean(pools.at(-2)) >= mean(pools.at(-1))) pools.push([...pools.pop(), ...pools.pop()]);
    });
    const last = high - gap * (wanted.length - 1);
    const places = [];
    pools.flatMap((pool) => pool.map(() => mean(pool))).forEach((level, k) => {
      places[order[k]] = Math.max(low, Math.min(last, level)) + k * gap;
    });
    return places;
  };

  class Panel {
    constructor(parent, chart, spec, hidden) {
      Object.assign(this, { chart, spec, hidden, cursor: null });
      this.box = element(parent, "div", { class: "panel" });
      if (spec.title) element(this.box, "h3", {}, spec.title);
      this.plot = element(this.box, "svg", {
        class: "plot", height: this.height, tabindex: 0, role: "application",
        "aria-label": `${chart.y_label} over ${chart.x_label}${spec.title ? `, ${spec.title}` : ""}. `
          + "Left and right move the reading line, shift with arrows moves the view, plus and minus zoom, 0 shows all.",
      });
      this.readout = element(this.box, "div", { class: "readout", role: "status", hidden: "" });
      // A scale of factors is drawn in powers of ten; the end of a band may lie below all of them.
      this.scale = chart.factors ? (value) => Math.log10(Math.max(value, spec.frame[0] / 1e3)) : (value) => value;
      const places = spec.lines.flatMap((line) => line.points.map((point) => point[0]));
      const [low, high] = [Math.min(...places), Math.max(...places)];
      const room = (high - low) * 0.02;
      this.home = [low - room, high + room, ...spec.frame.map(this.scale)];
      this.places = [...new Set(places)].sort((one, other) => one - other);
      this.view = [...this.home];
      new ResizeObserver(() => this.draw()).observe(this.box);
      this.listen();
      this.draw();
    }

    get width() { return Math.max(200, this.box.clientWidth); }
    get height() { return Math.max(HEIGHT, this.spec.lines.length * LABEL + MARGIN.top + MARGIN.bottom); }
    get inner() { return { w: this.width - MARGIN.left - this.right, h: this.height - MARGIN.top - MARGIN.bottom }; }
    x(value) { return MARGIN.left + ((value - this.view[0]) / (this.view[1] - this.view[0])) * this.inner.w; }
    y(value) { return MARGIN.top + (1 - (value - this.view[2]) / (this.view[3] - this.view[2])) * this.inner.h; }
    valueX(pixel) { return this.view[0] + ((pixel - MARGIN.left) / this.inner.w) * (this.view[1] - this.view[0]); }
    valueY(pixel) { return this.view[3] - ((pixel - MARGIN.top) / this.inner.h) * (this.view[3] - this.view[2]); }

    get shown() { return this.spec.lines.filter((line) => !this.hidden.has(line.row)); }

    draw() {
      const { plot, width } = this;
      // Room for the names of the lines, where they leave most of the width to the lines.
      const room = Math.max(...this.spec.lines.map((line) => widthOf(line.row))) + LEADER;
      this.right = room < width * 0.38 ? room + 4 : MARGIN.right;
      const { w, h } = this.inner;
      plot.replaceChildren();
      plot.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      const clip = `clip-${this.chart.name}-${this.chart.panels.indexOf(this.spec)}`;
      element(element(plot, "clipPath", { id: clip }), "rect", { x: MARGIN.left, y: MARGIN.top, width: w, height: h });
      for (const [value, text] of ticks(this.view[0], this.view[1], Math.max(3, Math.min(6, w / 48)), 1)) {
        element(plot, "line", { class: "grid", x1: this.x(value), x2: this.x(value), y1: MARGIN.top, y2: MARGIN.top + h });
        element(plot, "text", { x: this.x(value), y: MARGIN.top + h + 16, "text-anchor": "middle" }, text);
      }
      const beside = this.chart.factors ? factors(this.view[2], this.view[3]) : ticks(this.view[2], this.view[3], 6);
      for (const [value, text] of beside) {
        element(plot, "line", { class: "grid", x1: MARGIN.left, x2: MARGIN.left + w, y1: this.y(value), y2: this.y(value) });
        element(plot, "text", { x: MARGIN.left - 6, y: this.y(value) + 4, "text-anchor": "end" }, text);
      }
      element(plot, "path", { class: "axis", d: `M${MARGIN.left},${MARGIN.top}v${h}h${w}` });
      element(plot, "text", { x: MARGIN.left + w / 2, y: this.height - 6, "text-anchor": "middle" }, this.chart.x_label);
      element(plot, "text", {
        transform: `translate(11 ${MARGIN.top + h / 2}) rotate(-90)`, "text-anchor": "middle",
      }, this.chart.y_label);
      const inside = element(plot, "g", { "clip-path": `url(#${clip})` });
      for (const { row, points } of this.shown) {
        const { color, dash } = data.looks[row];
        const at = (index) => (point) => `${this.x(point[0]).toFixed(1)},${this.y(this.scale(point[index])).toFixed(1)}`;
        const band = [...points.map(at(2)), ...[...points].reverse().map(at(3))];
        const seeds = points.flatMap(([place, , , , ...values]) => values.map((value) => [place, value]));
        if (!seeds.length) element(inside, "path", { d: `M${band.join("L")}Z`, fill: color, "fill-opacity": 0.14 });
        for (const [place, value] of seeds) {
          const [cx, cy] = [this.x(place), this.y(this.scale(value))];
          element(inside, "circle", { cx, cy, r: 1.8, fill: color, "fill-opacity": 0.6 });
        }
        element(inside, "path", {
          d: `M${points.map(at(1)).join("L")}`, fill: "none", stroke: color, "stroke-width": 1.8,
          "stroke-dasharray": dash, "stroke-linejoin": "round",
        });
        for (const point of this.chart.whole || points.length === 1 ? points : []) {
          const [cx, cy] = [this.x(point[0]), this.y(this.scale(point[1]))];
          element(inside, "circle", { cx, cy, r: 3, fill: color });
        }
      }
      if (this.right > MARGIN.right) this.nameLines();
      if (this.cursor !== null) {
        const x = this.x(this.cursor);
        element(inside, "line", { class: "axis", x1: x, x2: x, y1: MARGIN.top, y2: MARGIN.top + h, "stroke-dasharray": "3 3" });
      }
      if (this.marquee) element(plot, "rect", { class: "marquee", ...this.marquee });
      this.read();
    }

    nameLines() {
      const [x0, x1, y0, y1] = this.view;
      const ends = this.shown.flatMap(({ row, points }) => {
        const end = points.findLast((point) => point[0] >= x0 && point[0] <= x1);
        const value = end && this.scale(end[1]);
        return end && value >= y0 && value <= y1 ? [{ row, x: this.x(end[0]), y: this.y(value) }] : [];
      });
      const [top, bottom] = [MARGIN.top + LABEL / 2, this.height - MARGIN.bottom - LABEL / 2];
      const places = spread(ends.map((end) => end.y), LABEL, top, bottom);
      const left = this.width - this.right + LEADER;
      ends.forEach(({ row, x, y }, index) => {
        const { color, dash } = data.looks[row];
        const isEarly = x < MARGIN.left + 0.9 * this.inner.w; // a leader across the plot must not look like its line
        element(this.plot, "path", {
          class: "leader", d: `M${x},${y}L${left - 3},${places[index]}`, stroke: color,
          "stroke-dasharray": isEarly ? "1 4" : dash,
        });
        element(this.plot, "text", { class: "name", x: left, y: places[index] + 4 }, row);
      });
    }

    read() {
      this.readout.hidden = this.cursor === null;
      if (this.cursor === null) return;
      const found = this.shown
        .map((line) => [line.row, line.points.find((point) => point[0] === this.cursor)])
        .filter(([, point]) => point)
        .sort(([, one], [, other]) => one[1] - other[1]);
      this.readout.replaceChildren();
      element(this.readout, "div", {}, `${this.cursor.toLocaleString("en")} ${this.chart.x_unit}`);
      const table = element(this.readout, "table");
      for (const [row, point] of found) {
        const line = element(table, "tr");
        const name = element(line, "td");
        name.append(swatch(row), ` ${row}`);
        element(line, "td", {}, readable(point[1]));
        element(line, "td", {}, `[${readable(point[2])}, ${readable(point[3])}]`);
      }
      // Away from the line that is read, so that it hides nothing of interest.
      const left = this.x(this.cursor) > this.width / 2;
      this.readout.style.left = left ? `${MARGIN.left + 6}px` : "auto";
      this.readout.style.right = left ? "auto" : `${this.right}px`;
    }

    show(view) {
      if (view[1] - view[0] > 1e-9 && view[3] - view[2] > 1e-9) this.view = view;
      this.draw();
    }

    zoom(factor, x = (this.view[0] + this.view[1]) / 2, y = (this.view[2] + this.view[3]) / 2) {
      const [x0, x1, y0, y1] = this.view;
      this.show([x + (x0 - x) * factor, x + (x1 - x) * factor, y + (y0 - y) * factor, y + (y1 - y) * factor]);
    }

    pan(right, up) {
      const [x0, x1, y0, y1] = this.view;
      const [dx, dy] = [(x1 - x0) * right, (y1 - y0) * up];
      this.show([x0 + dx, x1 + dx, y0 + dy, y1 + dy]);
    }

    reset() { this.show([...this.home]); }

    move(by) {
      const visible = this.places.filter((place) => place >= this.view[0] && place <= this.view[1]);
      if (!visible.length) return;
      const index = this.cursor === null ? visible.length - 1 : visible.indexOf(this.cursor) + by;
      this.cursor = visible[Math.max(0, Math.min(visible.length - 1, index))];
      this.draw();
    }

    listen() {
      const { plot } = this;
      const at = (event) => {
        const frame = plot.getBoundingClientRect();
        return [(event.clientX - frame.left) * (this.width / frame.width), (event.clientY - frame.top) * (this.height / frame.height)];
      };
      let start = null;
      const hover = (x) => {
        const value = this.valueX(x);
        const near = (best, place) => (Math.abs(place - value) < Math.abs(best - value) ? place : best);
        this.cursor = this.places.reduce(near);
        this.draw();
      };
      plot.addEventListener("pointerdown", (event) => {
        if (event.pointerType !== "mouse") { hover(at(event)[0]); return; }
        if (event.button !== 0) return;
        start = at(event);
        plot.setPointerCapture(event.pointerId);
      });
      plot.addEventListener("pointermove", (event) => {
        const [x, y] = at(event);
        if (start) {
          this.marquee = {
            x: Math.min(x, start[0]), y: Math.min(y, start[1]), width: Math.abs(x - start[0]), height: Math.abs(y - start[1]),
          };
          this.cursor = null;
          this.draw();
        } else hover(x);
      });
      plot.addEventListener("pointerup", () => {
        const box = this.marquee;
        start = null;
        this.marquee = null;
        if (box && box.width > 5 && box.height > 5) {
          this.show([this.valueX(box.x), this.valueX(box.x + box.width), this.valueY(box.y + box.height), this.valueY(box.y)]);
        } else this.draw();
      });
      plot.addEventListener("pointerleave", (event) => {
        if (event.pointerType !== "mouse" || start) return;
        this.cursor = null;
        this.draw();
      });
      plot.addEventListener("dblclick", () => this.reset());
      plot.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && document.activeElement !== plot) return; // the wheel scrolls the page until a plot is chosen
        event.preventDefault();
        const [x, y] = at(event);
        this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, this.valueX(x), this.valueY(y));
      }, { passive: false });
      plot.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
        if (event.key in steps) {
          const [right, up] = steps[event.key];
          if (event.shiftKey) this.pan(right * 0.1, up * 0.1);
          else if (right) this.move(right);
          else return;
        } else if (event.key === "+" || event.key === "=") this.zoom(1 / 1.3);
        else if (event.key === "-") this.zoom(1.3);
        else if (event.key === "0" || event.key === "Home") this.reset();
        else if (event.key === "Escape") { this.cursor = null; this.draw(); } else return;
        event.preventDefault();
      });
      plot.addEventListener("blur", () => { this.cursor = null; this.draw(); });
    }
  }

  const swatch = (row) => {
    const { color, dash } = data.looks[row];
    const drawn = element(null, "svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" });
    element(drawn, "line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash });
    return drawn;
  };

  const replaceDrawing = (name) => {
    const figure = document.getElementById(`figure-${name}`);
    const stage = element(null, "div", { class: "stage" });
    figure.querySelector(".drawing").after(stage); // the drawing stays for print
    figure.classList.add("live");
    return stage;
  };

  for (const chart of data.charts) {
    const stage = replaceDrawing(chart.name);
    const hidden = new Set();
    const grid = element(stage, "div", { class: "panels" });
    const panels = chart.panels.map((spec) => new Panel(grid, chart, spec, hidden));
    const tools = element(stage, "div", { class: "tools", role: "group", "aria-label": "Lines and zoom" });
    for (const row of Object.keys(data.looks)) {
      if (!chart.panels.some((panel) => panel.lines.some((line) => line.row === row))) continue;
      const button = element(tools, "button", { type: "button", "aria-pressed": "true" });
      button.append(swatch(row), row);
      button.addEventListener("click", () => {
        if (!hidden.delete(row)) hidden.add(row);
        button.setAttribute("aria-pressed", String(!hidden.has(row)));
        for (const panel of panels) panel.draw();
      });
    }
    const zooms = element(tools, "span", { class: "zooms" });
    for (const [label, text, act] of [
      ["zoom in", "+", (panel) => panel.zoom(1 / 1.3)],
      ["zoom out", "−", (panel) => panel.zoom(1.3)],
      ["show all", "reset", (panel) => panel.reset()],
    ]) {
      element(zooms, "button", { type: "button", "aria-label": label }, text)
        .addEventListener("click", () => panels.forEach(act));
    }
    if (chart === data.charts[0]) {
      element(stage, "p", { class: "hint" }, "Drag a box to zoom into a chart, and double-click to see all of it. Click a chart "
        + "to zoom with the wheel, or with + − 0, the arrows, and shift with the arrows. The legend hides and shows lines.");
    }
  }

  // --- attention maps ----------------------------------------------------------------------------------------------

  const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // dark to light, evenly

  const colorAt = (share) => {
    const place = Math.min(share, 0.9999) * (STOPS.length - 1);
    const index = Math.floor(place);
    return STOPS[index].map((from, channel) => from + (place - index) * (STOPS[index + 1][channel] - from));
  };

  const paint = (canvas, map, { n_queries, n_keys, is_causal }) => {
    canvas.width = n_keys;
    canvas.height = n_queries;
    const context = canvas.getContext("2d");
    const image = context.createImageData(n_keys, n_queries);
    map.bytes.forEach((byte, index) => {
      const isAhead = index % n_keys > Math.floor(index / n_keys);
      if (!is_causal || !isAhead) image.data.set([...colorAt(byte / 255), 255], 4 * index);
    });
    context.putImageData(image, 0, 0);
  };

  const unpack = (maps) => {
    const bytes = Uint8Array.from(atob(maps.bytes), (sign) => sign.charCodeAt(0));
    const size = maps.n_queries * maps.n_keys;
    return maps.layers.map((_, layer) => maps.heads.map((__, head) => {
      const number = layer * maps.heads.length + head;
      return { bytes: bytes.subarray(number * size, (number + 1) * size), largest: maps.largest[number] };
    }));
  };

  class Side {
    constructor(parent, viewer) {
      this.viewer = viewer;
      this.box = element(parent, "div");
      this.heading = element(this.box, "h3");
      this.large = element(this.box, "canvas", { class: "large", tabindex: 0, role: "img" });
      this.weight = element(this.box, "p", { class: "weight", role: "status" });
      this.thumbs = element(this.box, "div", { class: "thumbs", role: "group", "aria-label": "layers and heads" });
      this.at = null;
      this.large.addEventListener("pointermove", (event) => {
        const frame = this.large.getBoundingClientRect();
        this.look(
          Math.floor(((event.clientY - frame.top) / frame.height) * this.maps.n_queries),
          Math.floor(((event.clientX - frame.left) / frame.width) * this.maps.n_keys),
        );
      });
      this.large.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (!step) return;
        event.preventDefault();
        const [query, key] = this.at || [0, 0];
        this.look(query + step[0], key + step[1]);
      });
    }

    take(maps) {
      this.maps = maps;
      this.parts = unpack(maps);
      this.thumbs.replaceChildren();
      this.thumbs.style.gridTemplateColumns = `repeat(${maps.heads.length}, minmax(0, 1fr))`;
      this.parts.forEach((row, layer) => row.forEach((map, head) => {
        const button = element(this.thumbs, "button", {
          type: "button", "aria-label": `layer ${maps.layers[layer]}, head ${maps.heads[head]}`,
        });
        paint(element(button, "canvas", { "aria-hidden": "true" }), map, maps);
        button.addEventListener("click", () => this.viewer.choose(layer, head));
      }));
    }

    draw(layer, head) {
      const { maps } = this;
      this.map = (this.parts[layer] || [])[head] || this.parts[0][0];
      this.heading.textContent = `${maps.row}: layer ${maps.layers[layer]}, head ${maps.heads[head]}`;
      this.large.setAttribute("aria-label", `Attention map of ${this.heading.textContent}. Arrow keys read its weights.`);
      paint(this.large, this.map, maps);
      [...this.thumbs.children].forEach((button, number) => {
        button.setAttribute("aria-pressed", String(number === layer * maps.heads.length + head));
      });
      if (this.at) this.look(...this.at);
      else this.weight.textContent = `largest weight ${this.map.largest.toFixed(3)}`;
    }

    look(query, key) {
      const { n_queries, n_keys, tokens } = this.maps;
      const bounded = (value, end) => Math.max(0, Math.min(end - 1, value));
      this.at = [bounded(query, n_queries), bounded(key, n_keys)];
      const named = (place) => (tokens[place] === undefined ? `${place}` : `${place} “${tokens[place]}”`);
      const weight = (this.map.bytes[this.at[0] * n_keys + this.at[1]] / 255) * this.map.largest;
      this.weight.textContent = `${named(this.at[0])} looks at ${named(this.at[1])}: ${weight.toFixed(3)}`;
    }
  }

  if (data.maps.length) {
    const stage = replaceDrawing("attention");
    const tools = element(stage, "div", { class: "tools" });
    const grid = element(stage, "div", { class: "maps" });
    const viewer = {
      layer: 0,
      head: 0,
      choose(layer, head) {
        Object.assign(this, { layer, head });
        for (const side of this.sides) side.draw(layer, head);
      },
    };
    viewer.sides = data.maps.slice(0, 2).map(() => new Side(grid, viewer));
    viewer.sides[0].take(data.maps[0]);
    if (data.maps.length > 1) {
      const label = element(tools, "label", {}, "beside it: ");
      const select = element(label, "select");
      data.maps.slice(1).forEach((maps, index) => element(select, "option", { value: index + 1 }, maps.row));
      select.value = data.rival;
      const take = () => {
        viewer.sides[1].take(data.maps[Number(select.value)]);
        viewer.choose(viewer.layer, viewer.head);
      };
      select.addEventListener("change", take);
      take();
    } else viewer.choose(0, 0);
    element(stage, "p", { class: "hint" }, "Queries go down, keys across. Choose a layer and a head among the small maps; "
      + "point at the large one, or move over it with the arrow keys, to read weights.");
  }
})();
