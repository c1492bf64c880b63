// What the three pictures share: a canvas whose pixels are filled in memory, since hundreds of thousands of rectangles are too many for
// calls of the canvas, and an axis that is moved and zoomed by wheel, drag, buttons and keys. No plotting library: those of a size that one
// would put into each page draw series of points, not rectangles that are found again under the pointer.
"use strict";

class Axis {
  constructor(changed) { this.changed = changed; this.setWhole(0, 1); }
  setWhole(from, to) { this.whole = [from, to > from ? to : from + 1]; this.view = [...this.whole]; }
  get span() { return this.view[1] - this.view[0]; }
  set(from, to) {
    const [least, most] = this.whole, span = Math.min(Math.max(to - from, (most - least) * 1e-9, this.smallest ?? 0), most - least);
    const start = Math.min(Math.max((from + to - span) / 2, least), most - span);
    this.view = [start, start + span];
    this.changed();
  }
  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const share = (around - this.view[0]) / this.span, span = Math.min(this.span * factor, this.whole[1] - this.whole[0]);
    this.set(around - share * span, around + (1 - share) * span);
  }
  move(distance) { this.set(this.view[0] + distance, this.view[1] + distance); }
  all() { this.set(...this.whole); }
}

class Surface {
  constructor(id) { this.canvas = document.getElementById(id); this.context = this.canvas.getContext("2d"); }
  // Begins a picture in one colour; false while the canvas is not shown.
  begin(colour) {
    const scale = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * scale), height = Math.round(this.canvas.clientHeight * scale);
    if (width < 1 || height < 1) return false;
    if (this.canvas.width !== width || this.canvas.height !== height || !this.image) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.names = new Uint32Array(width * height);
    }
    this.scale = scale;
    this.width = width;
    this.height = height;
    this.pixels.fill(colour);
    this.names.fill(NONE);
    return true;
  }
  // A rectangle in device pixels, at least one each way; under its name it is found again.
  fill(left, top, right, bottom, colour, name = NONE) {
    const x0 = Math.max(0, Math.floor(left)), x1 = Math.min(this.width, Math.max(Math.floor(right), x0 + 1));
    const y0 = Math.max(0, Math.floor(top)), y1 = Math.min(this.height, Math.max(Math.floor(bottom), y0 + 1));
    if (x0 >= x1) return;
    for (let y = y0; y < y1; y++) {
      this.pixels.fill(colour, y * this.width + x0, y * this.width + x1);
      if (name !== NONE) this.names.fill(name, y * this.width + x0, y * this.width + x1);
    }
  }
  // The name at a point, or within a few pixels of it; null when there is none.
  nameAt(x, y) {
    const reach = Math.round(3 * this.scale);
    let best = null, distance = Infinity;
    for (let py = Math.max(0, Math.floor(y) - reach); py <= Math.min(this.height - 1, Math.floor(y) + reach); py++)
      for (let px = Math.max(0, Math.floor(x) - reach); px <= Math.min(this.width - 1, Math.floor(x) + reach); px++) {
        const name = this.names[py * this.width + px], away = Math.hypot(px - Math.floor(x), py - Math.floor(y));
        if (name !== NONE && away < distance) { best = name; distance = away; }
      }
    return best;
  }
  end() { this.context.putImageData(this.image, 0, 0); }
  text(words, x, y, align = "left") {
    const g = this.context;
    g.font = `${11 * this.scale}px system-ui, sans-serif`;
    g.textAlign = align;
    g.lineWidth = 3 * this.scale;
    g.lineJoin = "round";
    g.strokeStyle = css("--panel");
    g.strokeText(words, x, y);
    g.fillStyle = css("--soft");
    g.fillText(words, x, y);
  }
  outline(left, top, right, bottom) {
    const g = this.context;
    g.lineWidth = 2 * this.scale;
    g.strokeStyle = css("--text");
    g.strokeRect(left, top, Math.max(right - left, 2 * this.scale), Math.max(bottom - top, 2 * this.scale));
  }
  // Where an event of the pointer lies, in device pixels.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * this.scale, (event.clientY - box.top) * this.scale];
  }
}

// Drag, wheel, hover and click of a surface. A drag of less than a few pixels is a click.
function listen(surface, {drag, wheel, hover, click, key}) {
  const canvas = surface.canvas;
  let from = null, moved = false;
  canvas.addEventListener("pointerdown", event => { from = surface.at(event); moved = false; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    const now = surface.at(event);
    if (from === null) { hover(now, event); return; }
    if (moved || Math.hypot(now[0] - from[0], now[1] - from[1]) > 3 * surface.scale) {
      moved = true;
      hover(null);
      drag(now[0] - from[0], now[1] - from[1]);
      from = now;
    }
  });
  canvas.addEventListener("pointerup", event => { if (from !== null && !moved) click(surface.at(event)); from = null; });
  canvas.addEventListener("pointercancel", () => { from = null; });
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    wheel(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) / 400), surface.at(event), event.shiftKey);
  }, {passive: false});
  canvas.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (!key(event.key)) return;
    event.preventDefault();
    hover(null);
  });
}

// ---- colours ----

let known = new Map();
function css(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}
// As the pixels of a canvas hold it.
function pixel(name) {
  const text = css(name), value = parseInt(text.slice(1), 16);
  return (0xff000000 | (value & 0xff) << 16 | (value & 0xff00) | value >> 16) >>> 0;
}
function forgetColours() { known = new Map(); hues = []; }

// One of 24 colours for a number: neighbours differ.
let hues = [];
function hue(number) {
  if (hues.length === 0) {
    const dark = document.documentElement.dataset.theme === "dark";
    for (let i = 0; i < 24; i++) hues.push(fromHsl((i * 137.5) % 360, 0.34 + (i % 3) * 0.08, (dark ? 0.5 : 0.54) + (i % 4) * 0.05));
  }
  return hues[(Math.imul(number + 1, 2654435761) >>> 8) % hues.length];
}
function fromHsl(h, s, l) {
  const part = n => {
    const k = (n + h / 30) % 12;
    return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return (0xff000000 | part(4) << 16 | part(8) << 8 | part(0)) >>> 0;
}
