// The state at the end: all reserved addresses in order, cut into rows like lines of a text. Segments follow each other without gaps.
"use strict";

class MapView {
  constructor(page) {
    this.page = page;
    this.surface = new Surface("map");
    this.axis = new Axis(() => page.draw());
    listen(this.surface, {
      drag: (dx, dy) => this.axis.move(-dy / this.rowHeight * this.rowBytes - dx / this.width * this.rowBytes),
      wheel: (factor, at) => this.axis.zoom(factor, this.placeAt(at) ?? undefined),
      hover: (at, event) => page.hover(at && this.words(at), event),
      click: at => page.selectBlock(this.blockAt(at)),
      key: name => this.key(name),
    });
  }
  setDevice(device) {
    this.device = device;
    this.axis.setWhole(0, device.mapBytes);
    this.axis.smallest = 16384;
  }

  layout() {
    const s = this.surface;
    this.left = 118 * s.scale;
    this.width = s.width - this.left;
    this.rows = Math.max(1, Math.floor(s.height / (18 * s.scale)));
    this.rowHeight = s.height / this.rows;
    this.rowBytes = this.axis.span / this.rows;
  }
  placeAt([x, y]) {
    if (x < this.left) return null;
    return this.axis.view[0] + Math.min(Math.floor(y / this.rowHeight), this.rows - 1) * this.rowBytes + (x - this.left) / this.width * this.rowBytes;
  }

  draw() {
    const s = this.surface, d = this.device, c = d.column;
    if (!s.begin(pixel("--panel"))) return;
    this.layout();
    const colour = [pixel("--idle"), pixel("--pending"), pixel("--live")], fixed = pixel("--fixed"), dim = pixel("--dim"), edge = pixel("--text"), seam = pixel("--panel");
    const found = this.page.foundBlocks, count = c.block_bytes.length;
    for (let b = Math.max(0, lastAtMost(d.blockStart, this.axis.view[0], count)); b < count && d.blockStart[b] < this.axis.view[1]; b++) {
      const state = c.block_state[b] & 3, held = state !== 0;
      this.fillBytes(d.blockStart[b], d.blockStart[b + 1], found && held && !found[b] ? dim : c.block_state[b] & 4 ? fixed : colour[state], held);
      if (c.block_bytes[b] / this.rowBytes * this.width > 6 * s.scale) this.fillBytes(d.blockStart[b], d.blockStart[b], seam, true);
    }
    for (let i = Math.max(0, lastAtMost(d.segmentStart, this.axis.view[0], d.segments.length)); i < d.segments.length && d.segmentStart[i] < this.axis.view[1]; i++)
      if (c.segment_bytes[i] / this.rowBytes * this.width > 4) this.fillBytes(d.segmentStart[i], d.segmentStart[i], edge, true);
    s.end();
    for (let row = 0; row < this.rows; row++) {
      const place = this.axis.view[0] + row * this.rowBytes, b = Math.max(0, lastAtMost(d.blockStart, place, count));
      if (count > 0) {
        const address = BigInt(d.segments[d.blockSegment[b]]) + BigInt(Math.floor(place - d.segmentStart[d.blockSegment[b]]));
        s.text(hex(address), this.left - 8 * s.scale, (row + 0.5) * this.rowHeight + 4 * s.scale, "right");
      }
    }
    if (this.page.block !== null) this.rowsOf(d.blockStart[this.page.block], d.blockStart[this.page.block + 1], (x0, y0, x1, y1) => s.outline(x0, y0, x1, y1));
  }
  // Idle bytes never cover held ones within a pixel.
  fillBytes(from, to, colour, held) {
    this.rowsOf(from, to, (x0, y0, x1, y1) => {
      if (held || x1 - x0 >= 1) this.surface.fill(held ? x0 : Math.ceil(x0), y0, x1, y1, colour);
    });
  }
  rowsOf(from, to, take) {
    const gap = 2 * this.surface.scale;
    const first = Math.max(0, Math.floor((from - this.axis.view[0]) / this.rowBytes));
    for (let row = first; row < this.rows; row++) {
      const start = this.axis.view[0] + row * this.rowBytes, x = place => this.left + Math.min(Math.max((place - start) / this.rowBytes, 0), 1) * this.width;
      if (start > to || (start === to && to > from)) break;
      take(x(from), row * this.rowHeight + gap, x(to), (row + 1) * this.rowHeight - gap);
    }
  }

  blockAt(at) {
    const place = this.placeAt(at), c = this.device.column;
    if (place === null || c.block_bytes.length === 0) return null;
    return Math.min(Math.max(0, lastAtMost(this.device.blockStart, place, c.block_bytes.length)), c.block_bytes.length - 1);
  }
  words(at) {
    const b = this.blockAt(at);
    return b === null ? null : this.page.wordsOfBlock(b, 8);
  }
  showBlock(b) {
    const d = this.device, from = d.blockStart[b], to = d.blockStart[b + 1];
    if (from < this.axis.view[0] || to > this.axis.view[1] || (to - from) / this.rowBytes * this.width < 3) {
      const around = Math.max((to - from) * 8, this.axis.smallest);
      this.axis.set(from - around, to + around);
    }
  }
  key(name) {
    const count = this.device.column.block_bytes.length, now = this.page.block;
    const next = step => this.page.selectBlock(Math.min(Math.max(now === null ? this.blockAt([this.left, 0]) : now + step, 0), count - 1), true);
    if (name === "ArrowRight") next(1);
    else if (name === "ArrowLeft") next(-1);
    else if (name === "ArrowDown") this.axis.move(this.rowBytes);
    else if (name === "ArrowUp") this.axis.move(-this.rowBytes);
    else if (name === "+" || name === "=") this.zoom(0.6);
    else if (name === "-") this.zoom(1 / 0.6);
    else if (name === "Home") this.all();
    else if (name === "Escape") this.page.selectBlock(null);
    else return false;
    return true;
  }
  zoom(factor) {
    const b = this.page.block, d = this.device;
    this.axis.zoom(factor, b !== null ? (d.blockStart[b] + d.blockStart[b + 1]) / 2 : undefined);
  }
  all() { this.axis.all(); }
}
