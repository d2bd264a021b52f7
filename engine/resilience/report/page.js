"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const LEFT = 64, RIGHT = 10, PLOT = 120, GAP = 14, LANE = 14, LANE_GAP = 6, AXIS = 22;
  const STATES = ["firing", "held", "recovering", "suspended", "pending"];
  const MIN_VIEW_MS = 1000, DRAG_PX = 5, TEXT_MAX = 160;
  const full = { from: 0, to: Math.max(1, data.end_ms - data.start_ms) };
  let view = { ...full };
  let cursor = null;      // ms from the start, where the pointer or the keys are
  let drag = null;        // { chart, x0, x1, pan } in CSS pixels
  let colours = {};
  const charts = [];

  // --- text -------------------------------------------------------------------------------------

  const pad = (n) => String(n).padStart(2, "0");
  const short = (text) => text.length > TEXT_MAX ? text.slice(0, TEXT_MAX - 1) + "…" : text;

  function clock(ms, withDate, withSeconds) {
    const d = new Date(data.start_ms + ms);
    const date = `${d.getUTCFullYear()}-${pad(d.getUTCMonth() + 1)}-${pad(d.getUTCDate())}`;
    const time = `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}`;
    return (withDate ? date + " " : "") + time + (withSeconds ? ":" + pad(d.getUTCSeconds()) : "");
  }

  function stretch(ms) {
    const parts = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];
    let left = Math.round(ms), text = "", used = 0;
    for (const [unit, size] of parts) {
      const n = Math.floor(left / size);
      left -= n * size;
      if (n && used < 2) { text += n + unit; used += 1; }
    }
    return text || Math.round(ms) + "ms";
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(5)));
  }

  // --- colours ----------------------------------------------------------------------------------

  function readColours() {
    const style = getComputedStyle(root);
    const names = ["text", "faint", "grid", "threshold", "breach", "resolve", "cursor", "select",
      "blind", "idle", "inactive", "claim", "back", ...STATES];
    colours = Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
    colours.lines = [0, 1, 2, 3, 4, 5, 6, 7].map(
      (n) => style.getPropertyValue("--line-" + n).trim());
  }

  function dark() {
    const set = root.dataset.theme;
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  // --- one chart --------------------------------------------------------------------------------

  class Chart {
    constructor(box) {
      this.policy = data.policies[Number(box.dataset.policy)];
      this.canvas = box.querySelector("canvas");
      this.seen = false;
      this.dirty = true;
      this.moved = false;
      const lanes = (this.policy.before ? 2 : 1) + this.policy.claims.length;
      this.height = this.policy.plots.length * (PLOT + GAP) + lanes * (LANE + LANE_GAP) + AXIS;
      this.canvas.style.height = this.height + "px";
    }

    get width() { return this.canvas.clientWidth; }
    get inner() { return Math.max(1, this.width - LEFT - RIGHT); }
    x(ms) { return LEFT + (ms - view.from) / (view.to - view.from) * this.inner; }
    time(x) { return view.from + (x - LEFT) / this.inner * (view.to - view.from); }

    draw() {
      this.dirty = false;
      const ratio = window.devicePixelRatio || 1;
      const wide = Math.round(this.width * ratio), high = Math.round(this.height * ratio);
      if (this.canvas.width !== wide || this.canvas.height !== high) {
        this.canvas.width = wide;
        this.canvas.height = high;
      }
      const c = this.canvas.getContext("2d");
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      c.font = "11px system-ui, sans-serif";
      c.textBaseline = "middle";
      let top = 0;
      for (const plot of this.policy.plots) {
        this.plot(c, plot, top);
        top += PLOT + GAP;
      }
      if (this.policy.before) {
        this.states(c, "before", this.policy.before, [], top);
        top += LANE + LANE_GAP;
      }
      this.states(c, "state", this.policy.states, this.policy.sight, top);
      top += LANE + LANE_GAP;
      for (const lane of this.policy.claims) {
        this.claims(c, lane, top);
        top += LANE + LANE_GAP;
      }
      this.axis(c, top);
      this.marks(c);
    }

    free() {
      this.canvas.width = 0;   // a hundred large bitmaps would fill the memory
      this.canvas.height = 0;
      this.dirty = true;
    }

    plot(c, plot, top) {
      const [low, high] = range(plot);
      const y = (v) => top + PLOT - (v - low) / (high - low) * PLOT;
      c.save();
      c.fillStyle = colours.faint;
      c.textAlign = "right";
      for (const value of ticks(low, high, 4)) {
        c.fillText(number(value), LEFT - 6, y(value));
        rule(c, LEFT, y(value), this.width - RIGHT, colours.grid, []);
      }
      c.beginPath();
      c.rect(LEFT, top, this.inner, PLOT);
      c.clip();
      this.limits(c, plot, top, y);
      plot.lines.forEach((line, i) => this.line(c, plot, line, y, colours.lines[i % 8], []));
      plot.threshold_lines.forEach(
        (line) => this.line(c, plot, line, y, colours.threshold, [5, 4]));
      c.restore();
      if (plot.error || !plot.lines.length) {
        c.fillStyle = colours.faint;
        c.textAlign = "left";
        c.fillText(short(plot.error || "no data"), LEFT + 8, top + PLOT / 2);
      }
    }

    limits(c, plot, top, y) {
      if (plot.threshold !== null) {
        const at = y(plot.threshold);
        c.fillStyle = colours.breach;
        if (plot.op === ">" || plot.op === ">=") c.fillRect(LEFT, top, this.inner, at - top);
        if (plot.op === "<" || plot.op === "<=") c.fillRect(LEFT, at, this.inner, top + PLOT - at);
        rule(c, LEFT, at, this.width - RIGHT, colours.threshold, [5, 4]);
      }
      if (plot.resolve) {
        rule(c, LEFT, y(plot.resolve[1]), this.width - RIGHT, colours.resolve, [2, 4]);
      }
    }

    line(c, plot, line, y, colour, dash) {
      const offset = plot.start_ms - data.start_ms;
      const first = Math.max(0, Math.floor((view.from - offset) / plot.bucket_ms) - 1);
      const last = Math.min(line.low.length - 1,
        Math.ceil((view.to - offset) / plot.bucket_ms) + 1);
      c.strokeStyle = colour;
      c.setLineDash(dash);
      c.lineWidth = 1.5;
      c.beginPath();
      let pen = false;
      for (let i = first; i <= last; i += 1) {
        const low = line.low[i], high = line.high ? line.high[i] : low;
        if (low === null || high === null) { pen = false; continue; }
        const x = this.x(offset + i * plot.bucket_ms);
        if (pen) c.lineTo(x, y(low)); else c.moveTo(x, y(low));
        if (!pen && high === low) c.lineTo(x + 1, y(low));   // one bucket alone is still seen
        if (high !== low) c.lineTo(x, y(high));
        pen = true;
      }
      c.stroke();
      c.setLineDash([]);
    }

    states(c, name, states, sight, top) {
      this.name(c, name, top);
      c.fillStyle = colours.inactive;
      c.fillRect(LEFT, top, this.inner, LANE);
      this.bars(c, sight, top, (w) => w === "idle" ? colours.idle : colours.blind);
      this.bars(c, states.filter((s) => s[2] !== "inactive"), top, (w) => colours[w]);
    }

    claims(c, lane, top) {
      this.name(c, "claim", top);
      c.strokeStyle = colours.grid;
      c.strokeRect(LEFT + 0.5, top + 0.5, this.inner - 1, LANE - 1);
      this.bars(c, lane.spans, top, () => colours.claim);
      c.fillStyle = colours.back;
      c.textAlign = "left";
      for (const [from, to, text] of lane.spans) {
        const x0 = Math.max(LEFT, this.x(from)), x1 = Math.min(this.width - RIGHT, this.x(to));
        if (x1 - x0 > c.measureText(text).width + 8) c.fillText(text, x0 + 4, top + LANE / 2 + 1);
      }
    }

    name(c, text, top) {
      c.fillStyle = colours.faint;
      c.textAlign = "right";
      c.fillText(text, LEFT - 6, top + LANE / 2);
    }

    bars(c, spans, top, colour) {
      const end = this.width - RIGHT;
      for (const [from, to, word] of spans) {
        if (to < view.from || from > view.to) continue;
        const x0 = Math.max(LEFT, this.x(from)), x1 = Math.min(end, this.x(to));
        c.fillStyle = colour(word);
        c.fillRect(x0, top, Math.max(1, x1 - x0), LANE);
      }
    }

    axis(c, top) {
      c.fillStyle = colours.faint;
      c.textAlign = "center";
      const span = view.to - view.from;
      const step = timeStep(span / Math.max(2, this.inner / 110));
      const first = Math.ceil((data.start_ms + view.from) / step) * step - data.start_ms;
      let day = null;
      for (let t = first; t <= view.to; t += step) {
        const date = clock(t, true).slice(5, 10), seconds = step < 60000;
        const text = date === day ? clock(t, false, seconds) : date + " " + clock(t, false, seconds);
        day = date;
        c.fillText(text, Math.min(Math.max(this.x(t), LEFT + 30), this.width - 40), top + AXIS / 2);
      }
    }

    marks(c) {
      if (drag && drag.chart === this && !drag.pan) {
        c.fillStyle = colours.select;
        c.fillRect(Math.min(drag.x0, drag.x1), 0, Math.abs(drag.x1 - drag.x0), this.height - AXIS);
      }
      if (cursor !== null && cursor >= view.from && cursor <= view.to) {
        c.strokeStyle = colours.cursor;
        c.lineWidth = 1;
        c.beginPath();
        c.moveTo(this.x(cursor), 0);
        c.lineTo(this.x(cursor), this.height - AXIS);
        c.stroke();
      }
    }

    // What there is to read at the cursor, as rows of text.
    read(ms) {
      const rows = [clock(ms, true, true) + " UTC"];
      for (const plot of this.policy.plots) {
        const i = Math.floor((ms - (plot.start_ms - data.start_ms)) / plot.bucket_ms);
        for (const line of plot.lines) rows.push(short(line.label) + ": " + between(line, i));
        if (plot.threshold !== null) rows.push(`threshold ${plot.op} ${number(plot.threshold)}`);
        for (const line of plot.threshold_lines) {
          rows.push(`threshold ${plot.op} ${short(line.label)}: ${between(line, i)}`);
        }
        if (plot.resolve) rows.push(`resolves ${plot.resolve[0]} ${number(plot.resolve[1])}`);
      }
      const at = (spans) => spans.find((s) => s[0] <= ms && ms < s[1]);
      const state = at(this.policy.states), sight = at(this.policy.sight);
      rows.push("state: " + (state ? state[2] : "inactive") + (sight ? `, ${sight[2]}` : ""));
      if (this.policy.before) {
        const then = at(this.policy.before);
        rows.push("before: " + (then ? then[2] : "inactive"));
      }
      for (const lane of this.policy.claims) {
        const held = at(lane.spans);
        if (held) rows.push(`claims ${short(lane.label)} = ${held[2]}`);
      }
      return rows;
    }
  }

  function between(line, i) {
    const low = line.low[i], high = line.high ? line.high[i] : low;
    if (low === undefined || low === null) return "no data";
    return low === high ? number(low) : `${number(low)} to ${number(high)}`;
  }

  function rule(c, x0, y, x1, colour, dash) {
    c.strokeStyle = colour;
    c.lineWidth = 1;
    c.setLineDash(dash);
    c.beginPath();
    c.moveTo(x0, y);
    c.lineTo(x1, y);
    c.stroke();
    c.setLineDash([]);
  }

  // --- scales -----------------------------------------------------------------------------------

  function range(plot) {
    let low = Infinity, high = -Infinity;
    const see = (v) => {
      if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); }
    };
    const offset = plot.start_ms - data.start_ms;
    const first = Math.max(0, Math.floor((view.from - offset) / plot.bucket_ms));
    const last = Math.ceil((view.to - offset) / plot.bucket_ms);
    for (const line of [...plot.lines, ...plot.threshold_lines]) {
      for (let i = first; i <= Math.min(last, line.low.length - 1); i += 1) {
        see(line.low[i]);
        if (line.high) see(line.high[i]);
      }
    }
    see(plot.threshold);
    if (plot.resolve) see(plot.resolve[1]);
    if (low > high) return [0, 1];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw) || raw;
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high && found.length < 9; v += step) {
      found.push(Math.abs(v) < step / 1e6 ? 0 : v);
    }
    return found;
  }

  function timeStep(least) {
    const m = 60000, h = 60 * m, d = 24 * h;
    const steps = [1000, 2000, 5000, 10000, 15000, 30000, m, 2 * m, 5 * m, 10 * m, 15 * m, 30 * m,
      h, 2 * h, 3 * h, 6 * h, 12 * h, d, 2 * d, 7 * d, 14 * d, 30 * d, 90 * d, 365 * d];
    return steps.find((s) => s >= least) || 3650 * d;
  }

  // --- the view ---------------------------------------------------------------------------------

  const rangeText = document.getElementById("range");
  const readout = document.getElementById("readout");
  const tip = document.getElementById("tip");
  let waiting = false;

  function refresh() {
    for (const chart of charts) chart.dirty = true;
    rangeText.textContent = `${clock(view.from, true, true)} to ${clock(view.to, true, true)} UTC, `
      + stretch(view.to - view.from);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      for (const chart of charts) if (chart.seen && chart.dirty) chart.draw();
    });
  }

  function show(from, to) {
    const least = Math.min(MIN_VIEW_MS, full.to);
    const span = Math.min(full.to, Math.max(least, to - from));
    const start = Math.min(Math.max(0, from), full.to - span);
    view = { from: start, to: start + span };
    refresh();
  }

  function zoom(factor, around) {
    const at = around === null ? (view.from + view.to) / 2 : around;
    show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }

  function pan(share) {
    const by = (view.to - view.from) * share;
    show(view.from + by, view.to + by);
  }

  function point(chart, ms, x, y) {
    cursor = Math.min(Math.max(ms, view.from), view.to);
    tip.replaceChildren(...chart.read(cursor).map((row) => {
      const line = document.createElement("p");
      line.textContent = row;
      return line;
    }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(y + 16, innerHeight - box.height - 4)) + "px";
    refresh();
  }

  function leave() {
    cursor = null;
    tip.hidden = true;
    refresh();
  }

  // --- pointer ----------------------------------------------------------------------------------

  function listen(chart) {
    const canvas = chart.canvas;
    const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointermove", (event) => {
      chart.moved = true;
      if (drag && drag.chart === chart) moveDrag(chart, at(event));
      else point(chart, chart.time(at(event)), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { chart, x0: at(event), x1: at(event), pan: event.shiftKey };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => endDrag(chart));
    canvas.addEventListener("pointercancel", () => { drag = null; leave(); });
    canvas.addEventListener("pointerleave", () => { chart.moved = false; if (!drag) leave(); });
    canvas.addEventListener("dblclick", () => show(full.from, full.to));
    canvas.addEventListener("wheel", (event) => {
      // A page that scrolls under a resting pointer goes on scrolling.
      if (!chart.moved && !event.ctrlKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000);
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, chart.time(at(event)));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => keys(chart, event));
    canvas.addEventListener("blur", leave);
  }

  function moveDrag(chart, x) {
    if (drag.pan) pan((drag.x1 - x) / chart.inner);
    drag.x1 = x;
    tip.hidden = true;
    refresh();
  }

  function endDrag(chart) {
    const done = drag;
    drag = null;
    if (!done || done.pan || Math.abs(done.x1 - done.x0) < DRAG_PX) return refresh();
    const from = chart.time(Math.max(LEFT, Math.min(done.x0, done.x1)));
    show(from, chart.time(Math.max(done.x0, done.x1)));
  }

  // --- keys -------------------------------------------------------------------------------------

  function keys(chart, event) {
    const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step && event.shiftKey) pan(step * 0.25);
    else if (step) walk(chart, step);
    else if (event.key === "+" || event.key === "=") zoom(0.5, cursor);
    else if (event.key === "-") zoom(2, cursor);
    else if (event.key === "0") show(full.from, full.to);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  }

  function walk(chart, step) {
    const span = view.to - view.from;
    const from = cursor === null ? (view.from + view.to) / 2 : cursor + step * span / 100;
    const box = chart.canvas.getBoundingClientRect();
    const ms = Math.min(Math.max(from, view.from), view.to);
    point(chart, ms, box.left + chart.x(ms), box.top);
    readout.textContent = chart.read(ms).join("; ");
  }

  // --- start ------------------------------------------------------------------------------------

  function remember(theme) {
    try { localStorage.setItem("resilience-theme", theme); } catch { /* a file may not */ }
  }

  function remembered() {
    try { return localStorage.getItem("resilience-theme"); } catch { return null; }
  }

  function themed() {
    const button = document.getElementById("theme");
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
    readColours();
    refresh();
  }

  function start() {
    const saved = remembered();
    if (saved === "light" || saved === "dark") root.dataset.theme = saved;
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = charts.find((c) => c.canvas === entry.target);
        chart.seen = entry.isIntersecting;
        if (!chart.seen) chart.free();
      }
      refresh();
    }, { rootMargin: "200px" });
    for (const box of document.querySelectorAll(".chart")) {
      const chart = new Chart(box);
      charts.push(chart);
      listen(chart);
      watcher.observe(chart.canvas);
    }
    document.getElementById("controls").hidden = false;
    document.getElementById("in").addEventListener("click", () => zoom(0.5, null));
    document.getElementById("out").addEventListener("click", () => zoom(2, null));
    document.getElementById("all").addEventListener("click", () => show(full.from, full.to));
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      remember(root.dataset.theme);
      themed();
    });
    document.getElementById("quiet").addEventListener("change", (event) => {
      for (const article of document.querySelectorAll("article[data-quiet]")) {
        article.hidden = event.target.checked;
      }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
    addEventListener("resize", refresh);
    addEventListener("scroll", () => { for (const c of charts) c.moved = false; },
      { passive: true });
    themed();
  }

  start();
})();
