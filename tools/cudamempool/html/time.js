// Live and reserved over time, and the lives of allocations below on the same axis. Time is the number of the event, or the clock.
"use strict";

class TimeView {
  constructor(page) {
    this.page = page;
    this.curve = new Surface("curve");
    this.lives = new Surface("lives");
    this.time = new Axis(() => page.draw());
    this.place = new Axis(() => page.draw());
    this.byClock = false;
    const shared = (surface, tall) => ({
      drag: (dx, dy) => {
        this.time.move(-dx / surface.width * this.time.span);
        if (tall) this.place.move(dy / surface.height * this.place.span);
      },
      wheel: (factor, [x, y], shift) => {
        if (!tall || !shift) this.time.zoom(factor, this.timeAt(x, surface));
        if (tall) this.place.zoom(factor, this.placeAt(y));
      },
      hover: (at, event) => page.hover(at && (tall ? this.lifeWords(at) : this.eventWords(at)), event),
      click: at => (tall ? page.selectLife(this.lifeAt(at)) : this.selectEvent(at)),
      key: name => this.key(name),
    });
    listen(this.curve, shared(this.curve, false));
    listen(this.lives, shared(this.lives, true));
  }

  setDevice(device) {
    this.device = device;
    this.colourOfLife = null;
    this.setClock(this.byClock && device.clock !== null);
    this.place.setWhole(0, device.placeEnd[device.placeEnd.length - 1]);
    this.place.smallest = 4096;
  }
  setClock(byClock) {
    this.byClock = byClock;
    this.time.setWhole(0, byClock ? Math.max(this.device.clock[this.device.events - 1], 1) : this.device.events);
    this.time.smallest = byClock ? 1000 : 2;
  }

  // Event numbers and positions: event e happens at position e, or at its clock.
  position(event) {
    if (event >= this.device.events) return this.time.whole[1];
    return this.byClock ? this.device.clock[event] : event;
  }
  eventAt(position) {
    const last = this.device.events - 1;
    return Math.max(0, Math.min(last, this.byClock ? lastAtMost(this.device.clock, position) : Math.floor(position)));
  }
  x(position, surface) { return (position - this.time.view[0]) / this.time.span * surface.width; }
  timeAt(x, surface) { return this.time.view[0] + x / surface.width * this.time.span; }
  placeAt(y) { return this.place.view[1] - y / this.lives.height * this.place.span; }

  // ---- curve ----

  drawCurve() {
    const s = this.curve, d = this.device;
    if (!s.begin(pixel("--panel"))) return;
    const most = Math.max(d.peakLive, d.peakReserved, 1) * 1.06, y = bytes => s.height - bytes / most * s.height;
    const live = pixel("--live"), pending = pixel("--pending"), reserved = pixel("--reserved"), room = pixel("--idle");
    let from = this.eventAt(this.timeAt(0, s));
    for (let px = 0; px < s.width; px++) {
      const to = this.eventAt(this.timeAt(px + 1, s));
      let peak = d.live[from], waits = d.pending[from], held = d.reserved[from];
      for (let e = from + 1; e <= to + 1; e++) {
        if (d.live[e] > peak) peak = d.live[e];
        if (d.live[e] + d.pending[e] > peak + waits) waits = d.live[e] + d.pending[e] - peak;
        if (d.reserved[e] > held) held = d.reserved[e];
      }
      if (held > 0) s.fill(px, y(held), px + 1, s.height, room);
      s.fill(px, y(peak + waits), px + 1, y(peak), waits > 0 ? pending : room);
      s.fill(px, y(peak), px + 1, s.height, live);
      if (held > 0) s.fill(px, y(held), px + 1, y(held) + 2 * s.scale, reserved);
      from = to;
    }
    s.end();
    const step = 2 ** Math.ceil(Math.log2(most / 4)); // lines at round sizes
    for (let bytes = step; y(bytes) > 16 * s.scale; bytes += step) {
      s.context.fillStyle = css("--line");
      s.context.fillRect(0, y(bytes), s.width, 1);
      s.text(size(bytes), 4 * s.scale, y(bytes) - 3 * s.scale);
    }
    this.drawMarks(s, true);
  }

  drawMarks(s, words) {
    const g = s.context;
    let free = -1;
    for (const refusal of this.device.refusals) {
      if (refusal.event === null) continue;
      const x = this.x(this.position(refusal.event), s);
      if (x < 0 || x > s.width) continue;
      g.fillStyle = css("--refused");
      g.fillRect(x - s.scale, 0, 2 * s.scale, s.height);
      if (!words || x < free) continue;
      g.font = `600 ${11 * s.scale}px system-ui, sans-serif`;
      const text = "refused: " + refusal.verdict, width = g.measureText(text).width, left = x + width + 10 * s.scale > s.width ? x - width - 6 * s.scale : x + 6 * s.scale;
      g.fillStyle = css("--panel");
      g.fillRect(left - 3 * s.scale, 3 * s.scale, width + 6 * s.scale, 16 * s.scale);
      g.fillStyle = css("--refused");
      g.textAlign = "left";
      g.fillText(text, left, 15 * s.scale);
      free = x + width + 12 * s.scale;
    }
  }

  eventWords([x]) {
    const d = this.device, e = this.eventAt(this.timeAt(x, this.curve)), mark = this.page.markBefore(e);
    return {title: `event ${e + 1} of ${d.events}` + (d.clock ? `, ${duration(d.clock[e])} after the first` : ""),
      rows: [["live", size(d.live[e + 1])], ["pending", size(d.pending[e + 1])],
        ...(d.reserved[e + 1] > 0 ? [["reserved", size(d.reserved[e + 1])]] : []), ...(mark ? [["in", mark]] : [])]};
  }
  selectEvent([x]) {
    const near = this.device.refusals.findIndex(r => r.event !== null && Math.abs(this.x(this.position(r.event), this.curve) - x) < 6 * this.curve.scale);
    if (near >= 0) this.page.selectRefusal(near);
    else this.page.show(this.eventWords([x]));
  }

  // ---- lives ----

  colours() {
    const c = this.device.column, by = document.getElementById("colours").value;
    if (this.colourOfLife && this.colouredBy === by) return this.colourOfLife;
    this.colouredBy = by;
    this.colourOfLife = new Uint32Array(c.life_begin.length);
    for (let i = 0; i < c.life_begin.length; i++)
      this.colourOfLife[i] = hue(by === "tag" ? c.life_tag[i] : by === "stream" ? c.life_stream[i] : by === "size" ? Math.round(Math.log2(c.life_bytes[i] + 1)) : c.life_stack[i]);
    return this.colourOfLife;
  }

  drawLives() {
    const s = this.lives, d = this.device, c = d.column;
    if (!s.begin(pixel("--panel"))) return;
    const colours = this.colours(), found = this.page.foundLives, dim = pixel("--dim");
    const last = this.eventAt(this.time.view[1]), first = this.eventAt(this.time.view[0]), [low, high] = this.place.view;
    const sx = s.width / this.time.span, sy = s.height / this.place.span, t0 = this.time.view[0];
    const clock = this.byClock ? d.clock : null, end = this.time.whole[1];
    for (const wanted of found ? [0, 1] : [1])
      for (let i = 0; i < c.life_begin.length; i++) {
        const begin = c.life_begin[i] === NONE ? 0 : c.life_begin[i];
        if (begin > last) break; // in order of their beginning
        if (d.lifeEnd[i] < first || c.life_place[i] >= high || c.life_place[i] + c.life_bytes[i] <= low || (found && found[i] !== wanted)) continue;
        const from = clock ? clock[begin] : begin, to = d.lifeEnd[i] >= d.events ? end : clock ? clock[d.lifeEnd[i]] : d.lifeEnd[i];
        // a seam between neighbours, where there is room for one
        const left = (from - t0) * sx, right = (to - t0) * sx, top = s.height - (c.life_place[i] + c.life_bytes[i] - low) * sy;
        const bottom = s.height - (c.life_place[i] - low) * sy, seam = s.scale;
        s.fill(left, bottom - top > 6 * seam ? top + seam : top, right - left > 6 * seam ? right - seam : right, bottom, wanted ? colours[i] : dim, i);
      }
    s.end();
    this.drawMarks(s, false);
    if (this.page.life !== null) s.outline(...this.box(this.page.life));
  }
  box(i) {
    const s = this.lives, c = this.device.column, y = place => s.height - (place - this.place.view[0]) / this.place.span * s.height;
    return [this.x(c.life_begin[i] === NONE ? 0 : this.position(c.life_begin[i]), s), y(c.life_place[i] + c.life_bytes[i]),
      this.x(this.position(this.device.lifeEnd[i]), s), y(c.life_place[i])];
  }

  // The life under a point, with a few pixels of grace for thin ones.
  lifeAt([x, y]) {
    return this.lives.nameAt(x, y);
  }
  lifeWords(at) {
    const i = this.lifeAt(at);
    return i === null ? null : this.page.wordsOfLife(i, 8);
  }
  // Makes a life visible with something around it.
  showLife(i) {
    const c = this.device.column, begin = c.life_begin[i] === NONE ? 0 : this.position(c.life_begin[i]), end = this.position(this.device.lifeEnd[i]);
    if (begin < this.time.view[0] || end > this.time.view[1] || (end - begin) / this.time.span < 0.004) {
      const around = Math.max(end - begin, this.time.smallest);
      this.time.set(begin - around, end + around);
    }
    const place = c.life_place[i], around = c.life_bytes[i] * 6;
    if (place < this.place.view[0] || place + c.life_bytes[i] > this.place.view[1] || c.life_bytes[i] / this.place.span < 0.004)
      this.place.set(place - around, place + c.life_bytes[i] + around);
  }

  key(name) {
    const step = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1]}[name];
    const around = this.page.life;
    if (step) { this.time.move(step[0] * this.time.span); this.place.move(step[1] * this.place.span); }
    else if (name === "+" || name === "=") this.zoom(0.6);
    else if (name === "-") this.zoom(1 / 0.6);
    else if (name === "Home") this.all();
    else if (name === "n" || name === "p") this.page.selectLife(this.page.neighbour(around, name === "n" ? 1 : -1), true);
    else if (name === "r") this.page.nextRefusal();
    else if (name === "Escape") this.page.selectLife(null);
    else return false;
    return true;
  }
  zoom(factor) {
    this.time.zoom(factor);
    this.place.zoom(factor);
  }
  all() { this.time.all(); this.place.all(); }
}
