// The page itself: figures, refusals, holders, search, what is selected, and the state in the address so that a view can be kept.
"use strict";

const element = id => document.getElementById(id);
function make(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text !== null) node.textContent = text;
  node.append(...children);
  return node;
}

class Page {
  constructor(about) {
    this.about = about;
    this.life = this.block = this.foundLives = this.foundBlocks = null;
    this.time = new TimeView(this);
    this.map = new MapView(this);
    element("title").textContent = document.title = about.file + " – " + about.format;
    about.devices.forEach((device, i) => element("device").append(new Option(device.ordinal, i)));
    element("device-choice").hidden = about.devices.length < 2;
    element("device").onchange = () => { this.setDevice(Number(element("device").value)); this.search(element("search").value); };
    element("search").oninput = () => this.search(element("search").value);
    element("colours").onchange = () => this.draw();
    element("theme").onclick = () => this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    for (const button of document.querySelectorAll("button[data-view]")) button.onclick = () => this.press(button);
    window.addEventListener("resize", () => this.draw());
    const state = new URLSearchParams(location.hash.slice(1));
    this.setTheme(state.get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    this.setDevice(Math.min(Number(state.get("device") ?? 0), about.devices.length - 1));
    this.restore(state);
    element("status").textContent = "";
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    forgetColours();
    this.time.colourOfLife = null;
    this.draw();
  }
  press(button) {
    const view = button.dataset.view === "map" ? this.map : this.time, what = button.dataset.do;
    if (what === "axis") { this.time.setClock(!this.time.byClock); button.setAttribute("aria-pressed", this.time.byClock); this.draw(); }
    else if (what === "all") view.all();
    else view.zoom(what === "in" ? 0.5 : 2);
  }

  setDevice(number) {
    const device = this.device = this.about.devices[number];
    this.number = number;
    this.life = this.block = null;
    element("device").value = number;
    device.peakLive = device.live.reduce((most, bytes) => Math.max(most, bytes), 0);
    device.peakReserved = device.reserved.reduce((most, bytes) => Math.max(most, bytes), 0);
    element("history").hidden = device.events === 0;
    element("state").hidden = device.mapBytes === 0;
    document.querySelector('[data-do="axis"]').hidden = device.clock === null;
    const legend = ["live", "pending", ...(device.peakReserved > 0 ? ["reserved"] : []), ...(device.refusals.length > 0 ? ["refused"] : [])];
    element("curve-legend").replaceChildren(...legend.flatMap(kind => { const i = make("i", ""); i.className = kind; return [i, kind]; }));
    const c = device.column, varies = values => values.some(value => value !== values[0]);
    element("colours").value = varies(c.life_stack) ? "stack" : varies(c.life_tag) ? "tag" : "size"; // what is not known tells nothing apart
    this.time.setDevice(device);
    this.map.setDevice(device);
    this.fillFigures();
    this.fillRefusals();
    this.fillHolders();
    element("details").replaceChildren();
    this.draw();
  }

  draw() {
    if (this.waiting || !this.device) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.device.events > 0) { this.time.drawCurve(); this.time.drawLives(); }
      if (this.device.mapBytes > 0) this.map.draw();
      this.keep();
      document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
    });
  }

  // ---- state in the address ----

  keep() {
    const state = new URLSearchParams(), range = axis => axis.view.map(x => Number(x.toPrecision(12))).join();
    state.set("theme", document.documentElement.dataset.theme);
    if (this.number) state.set("device", this.number);
    if (this.time.byClock) state.set("clock", 1);
    if (this.device.events > 0) { state.set("time", range(this.time.time)); state.set("places", range(this.time.place)); }
    if (this.device.mapBytes > 0) state.set("map", range(this.map.axis));
    if (this.block !== null) state.set("block", this.block);
    if (this.life !== null) state.set("life", this.life);
    if (element("search").value) state.set("search", element("search").value);
    history.replaceState(null, "", "#" + state);
  }
  restore(state) {
    const range = (name, axis) => { const two = (state.get(name) ?? "").split(",").map(Number); if (two.length === 2 && two.every(isFinite)) axis.set(...two); };
    const index = (name, count) => { const n = Number(state.get(name) ?? NaN); return Number.isInteger(n) && n >= 0 && n < count ? n : null; };
    const c = this.device.column, life = index("life", c.life_begin.length), block = index("block", c.block_bytes.length);
    if (state.has("search")) { element("search").value = state.get("search"); this.search(state.get("search")); }
    if (state.get("clock") && this.device.clock) this.press(document.querySelector('[data-do="axis"]'));
    range("time", this.time.time);
    range("places", this.time.place);
    range("map", this.map.axis);
    if (block !== null) this.selectBlock(block);
    else if (life !== null) this.selectLife(life);
  }

  // ---- panels ----

  fillFigures() {
    const d = this.device, r = d.report, l = r.largest_request, list = [];
    if (r.device_bytes !== null) list.push(["device", r.device_bytes]);
    if (this.about.has_state) list.push(["reserved", r.reserved_bytes], ["live", r.live_bytes], ["pending", r.pending_bytes], ["idle", r.idle_bytes], ["fixed", r.fixed_bytes]);
    if (d.events > 0) list.push(["peak live", d.peakLive]);
    if (d.peakReserved > 0) list.push(["peak reserved", d.peakReserved]);
    if (this.about.has_state) list.push(["largest request now", l.now_bytes], ["after waiting", l.after_waiting_bytes], ["after moving pages", l.after_moving_bytes],
      ["after trim", l.after_trim_bytes], ["without moving pages", l.without_moving_bytes]);
    element("figures").replaceChildren(...list.map(([name, bytes]) => make("dl", null, make("dt", name), make("dd", size(bytes)))));
  }
  fillRefusals() {
    const shown = this.device.refusals.slice(-3).reverse();
    element("refusals").replaceChildren(...shown.map(refusal => {
      const first = make("p", null, make("strong", `Refused: ${size(refusal.request_bytes)}. `), `${refusal.verdict}: ${refusal.sentence}.`);
      const figures = [["live", refusal.live_bytes], ["idle", refusal.idle_bytes], ["free on the device", refusal.driver_free_bytes], ["limit", refusal.limit_bytes], ["short by", refusal.short_by_bytes || null]];
      const block = make("div", null, first, make("p", figures.filter(([, bytes]) => bytes !== null).map(([name, bytes]) => `${name} ${size(bytes)}`).join(" · ")));
      if (refusal.advice.length > 0)
        block.append(make("details", null, make("summary", "what helps, and what does not"), make("ul", null, ...refusal.advice.map(line => make("li", line))),
          make("ul", null, ...refusal.does_not_help.map(line => make("li", "does not: " + line)))));
      if (refusal.event !== null) {
        const button = make("button", "show the moment");
        button.onclick = () => this.selectRefusal(this.device.refusals.indexOf(refusal));
        block.append(button);
      }
      return block;
    }));
  }
  fillHolders() {
    const r = this.device.report, parts = [];
    const list = (title, holders, words, term) => {
      const named = holders.filter(holder => words(holder));
      if (named.length === 0) return;
      parts.push(make("h3", title), this.list(named.map(holder => [size(holder.bytes), words(holder), () => { element("search").value = term(holder); this.search(term(holder)); }])));
    };
    const told = holder => telling(holder.frames);
    list("Live memory by tag", r.tags, holder => holder.tag, holder => holder.tag);
    list("Live memory by call stack", r.stacks, told, told);
    element("holders").replaceChildren(...parts);
  }
  list(rows) {
    const list = make("ul", null, ...rows.map(([figure, words, act]) => {
      const button = make("button", null, make("b", figure), make("span", words));
      button.type = "button";
      button.title = words;
      button.onclick = act;
      return make("li", null, button);
    }));
    list.className = "list";
    return list;
  }

  // ---- what something is ----

  markBefore(event) {
    const c = this.device.column, at = lastAtMost(c.mark_event, event);
    return at < 0 ? null : this.about.strings[c.mark_text[at]] || `step ${c.mark_number[at]}`;
  }
  when(event) {
    const d = this.device;
    return event === NONE || event >= d.events ? null : `event ${event + 1}` + (d.clock ? `, ${duration(d.clock[event])} after the first` : "");
  }
  framesOf(stack, most) {
    const all = frames(this.about, stack);
    return most < all.length ? tellingFrames(all) : all;
  }
  wordsOfLife(i, most = Infinity) {
    const c = this.device.column, all = this.framesOf(c.life_stack[i], most);
    return {title: `${size(c.life_bytes[i])} at ${addressOfLife(this.device, i)}`, rows: [
      ["begins", this.when(c.life_begin[i]) ?? "before the history"], ["freed", this.when(c.life_free[i]) ?? "not in the history"],
      ...(c.life_done[i] !== NONE && c.life_done[i] !== c.life_free[i] ? [["done", this.when(c.life_done[i])]] : []),
      ...(c.life_tag[i] ? [["tag", this.about.strings[c.life_tag[i]]]] : []), ["stream", this.about.streams[c.life_stream[i]]],
    ], stack: all.slice(0, most), more: Math.max(0, all.length - most)};
  }
  wordsOfBlock(b, most = Infinity) {
    const d = this.device, c = d.column, s = d.blockSegment[b], all = this.framesOf(c.block_stack[b], most), life = d.lifeOfBlock[b];
    return {title: `${size(c.block_bytes[b])} ${["idle", "pending", "live"][c.block_state[b] & 3]} at ${addressOfBlock(d, b)}`, rows: [
      ...(c.block_requested[b] > 0 ? [["asked for", size(c.block_requested[b])]] : []), ...(c.block_state[b] & 4 ? [["fixed", "must not move"]] : []),
      ...(c.block_tag[b] ? [["tag", this.about.strings[c.block_tag[b]]]] : []), ["stream", this.about.streams[c.block_stream[b]]],
      ["segment", `${d.segments[s]}, ${size(c.segment_bytes[s])}, ${this.about.pools[c.segment_pool[s]]}${c.segment_expandable[s] ? ", expandable" : ""}`],
      ...(life !== NONE ? [["begins", this.when(c.life_begin[life]) ?? "before the history"]] : []),
    ], stack: all.slice(0, most), more: Math.max(0, all.length - most)};
  }
  render(words) {
    const table = make("table", null, ...words.rows.map(([name, value]) => make("tr", null, make("th", name), make("td", value))));
    const nodes = [make("h3", words.title), table];
    if (words.stack?.length) {
      const stack = make("ol", null, ...words.stack.map(frame => make("li", frame)), ...(words.more ? [make("li", `${words.more} more`)] : []));
      stack.className = "stack";
      nodes.push(stack);
    }
    return nodes;
  }
  show(words) { element("details").replaceChildren(...(words ? this.render(words) : [])); }
  hover(words, event) {
    const box = element("hover");
    box.hidden = !words;
    if (!words) return;
    box.replaceChildren(...this.render(words));
    box.style.left = Math.min(event.clientX + 16, innerWidth - box.offsetWidth - 8) + "px";
    box.style.top = (event.clientY + box.offsetHeight + 24 > innerHeight ? Math.max(4, event.clientY - box.offsetHeight - 12) : event.clientY + 16) + "px";
  }

  // ---- selection ----

  selectBlock(b, visible = false) {
    this.block = b;
    const life = b === null ? NONE : this.device.lifeOfBlock[b];
    this.life = life === NONE ? null : life;
    if (b !== null && visible) this.map.showBlock(b);
    this.show(b === null ? null : this.wordsOfBlock(b));
    this.draw();
  }
  selectLife(i, visible = false) {
    this.life = i;
    const block = i === null ? NONE : this.device.column.life_block[i];
    this.block = block === NONE ? null : block;
    if (i !== null && visible) this.time.showLife(i);
    this.show(i === null ? null : this.wordsOfLife(i));
    this.draw();
  }
  // The next life that was found, or of all.
  neighbour(i, step) {
    const count = this.device.column.life_begin.length;
    let at = i === null ? (step > 0 ? 0 : count - 1) : i + step;
    while (this.foundLives && at >= 0 && at < count && !this.foundLives[at]) at += step;
    return at >= 0 && at < count ? at : i;
  }
  selectRefusal(number) {
    const refusal = this.device.refusals[number], around = this.time.time.whole[1] / 40;
    this.refusal = number;
    this.show({title: `Refused: ${size(refusal.request_bytes)}`, rows: [["verdict", refusal.verdict], ["", refusal.sentence], ["live then", size(refusal.live_bytes)],
      ["idle then", size(refusal.idle_bytes)], ["when", (refusal.event === null ? null : this.when(refusal.event)) ?? "not in the history"]],
    stack: frames(this.about, refusal.stack), more: 0});
    if (refusal.event !== null) { const at = this.time.position(refusal.event); this.time.time.set(at - around, at + around); }
    this.draw();
  }
  nextRefusal() {
    const count = this.device.refusals.length;
    if (count > 0) this.selectRefusal(((this.refusal ?? -1) + 1) % count);
  }

  // ---- search ----

  search(text) {
    const d = this.device, c = d.column, term = text.trim().toLowerCase();
    this.foundLives = this.foundBlocks = null;
    element("found").replaceChildren();
    if (term !== "") {
      const test = this.matcher(term);
      this.foundBlocks = Uint8Array.from(c.block_bytes, (bytes, b) => test(c.block_stack[b], c.block_tag[b], bytes, c.block_state[b] & 3 ? () => addressOfBlock(d, b) : null));
      this.foundLives = Uint8Array.from(c.life_bytes, (bytes, i) => test(c.life_stack[i], c.life_tag[i], bytes, () => addressOfLife(d, i)));
      this.fillFound();
    }
    this.draw();
  }
  // What of a block or a life a term means: its size, its address, or words of its stack or tag.
  matcher(term) {
    const {strings, column} = this.about, bound = /^([<>])\s*([\d.]+)\s*([kmg]?)(i?b)?$/.exec(term);
    if (bound) {
      const bytes = Number(bound[2]) * 1024 ** ["", "k", "m", "g"].indexOf(bound[3]);
      return (stack, tag, size, address) => address !== null && (bound[1] === ">" ? size > bytes : size < bytes);
    }
    if (/^0x[0-9a-f]+$/.test(term)) return (stack, tag, size, address) => address !== null && address().startsWith(term);
    const inFile = /^(.*) \((.*):(\d+)\)$/.exec(term); // a frame as it is shown
    const has = Uint8Array.from(strings, words => words.toLowerCase().includes(term));
    const frame = Uint8Array.from(column.frame_function, (f, i) => inFile
      ? strings[f].toLowerCase() === inFile[1] && strings[column.frame_file[i]].toLowerCase() === inFile[2] && column.frame_line[i] === Number(inFile[3])
      : has[f] || has[column.frame_file[i]]);
    const inStack = Uint8Array.from(column.stack_first, (first, s) => column.stack_frames.subarray(first, first + column.stack_count[s]).some(f => frame[f]));
    return (stack, tag, size, address) => address !== null && (inStack[stack] || has[tag]);
  }
  fillFound() {
    const d = this.device, c = d.column, most = 100;
    const numbers = found => found.reduce((list, yes, i) => { if (yes) list.push(i); return list; }, []);
    const blocks = numbers(this.foundBlocks).sort((a, b) => c.block_bytes[b] - c.block_bytes[a]);
    const lives = numbers(this.foundLives).sort((a, b) => c.life_bytes[b] - c.life_bytes[a]);
    const words = stack => telling(frames(this.about, stack));
    const sum = (list, bytes) => size(list.reduce((total, i) => total + bytes[i], 0));
    element("found").append(make("h3", `Found: ${blocks.length} blocks, ${sum(blocks, c.block_bytes)}; ${lives.length} allocations in the history`));
    if (blocks.length > 0)
      element("found").append(this.list(blocks.slice(0, most).map(b => [size(c.block_bytes[b]), `${addressOfBlock(d, b)} ${words(c.block_stack[b])}`, () => this.selectBlock(b, true)])));
    if (lives.length > 0 && d.events > 0)
      element("found").append(make("h3", "Allocations"), this.list(lives.slice(0, most).map(i => [size(c.life_bytes[i]), `${this.when(c.life_begin[i]) ?? "before the history"} ${words(c.life_stack[i])}`, () => this.selectLife(i, true)])));
  }
}

readData().then(about => {
  if (about.devices.length === 0) element("status").textContent = "The file holds no device memory.";
  else window.page = new Page(about);
}).catch(fault => { element("status").textContent = "This page cannot be shown: " + fault.message; });
