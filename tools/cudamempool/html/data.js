// The data of the page: one compressed block of columns, and JSON that says where each lies. Numbers are doubles, so that addresses are
// kept as segments' own texts and everything else is a distance.
"use strict";

const NONE = 0xffffffff;
const COLUMN = {u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array};

async function readData() {
  const about = JSON.parse(document.getElementById("about").textContent);
  const text = atob(document.getElementById("columns").textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  const columns = list => Object.fromEntries(Object.entries(list).map(([name, [type, at, count]]) =>
    [name, new COLUMN[type](bytes, at, count)]));
  about.column = columns(about.columns);
  about.devices.forEach((device, i) => { device.column = columns(device.columns); device.report = about.reports[i]; derive(device); });
  return about;
}

// What is worked out once: starts of blocks on the map, and what was live and reserved after each event.
function derive(device) {
  const c = device.column, n = device.events;
  device.blockStart = running(c.block_bytes);
  device.segmentStart = running(c.segment_bytes);
  device.mapBytes = device.segmentStart[c.segment_bytes.length];
  device.blockSegment = new Uint32Array(c.block_bytes.length);
  device.lifeOfBlock = new Uint32Array(c.block_bytes.length).fill(NONE);
  for (let s = 0, b = 0; s < c.segment_blocks.length; s++)
    for (const end = b + c.segment_blocks[s]; b < end; b++) device.blockSegment[b] = s;
  device.live = new Float64Array(n + 1);
  device.pending = new Float64Array(n + 1);
  device.reserved = new Float64Array(n + 1);
  device.lifeEnd = new Uint32Array(c.life_begin.length);
  device.longest = 0;
  for (let i = 0; i < c.life_begin.length; i++) {
    const held = Math.ceil(c.life_bytes[i] / 512) * 512, begin = c.life_begin[i] === NONE ? 0 : c.life_begin[i] + 1;
    device.live[begin] += held;
    if (c.life_free[i] !== NONE) device.live[c.life_free[i] + 1] -= held;
    if (c.life_free[i] !== NONE) device.pending[c.life_free[i] + 1] += held;
    if (c.life_done[i] !== NONE) device.pending[c.life_done[i] + 1] -= held;
    device.lifeEnd[i] = c.life_done[i] !== NONE ? c.life_done[i] : n;
    if (c.life_block[i] !== NONE) device.lifeOfBlock[c.life_block[i]] = i;
  }
  device.reserved[0] = device.first_reserved_bytes ?? 0;
  for (let i = 0; i < c.step_event.length; i++) device.reserved[c.step_event[i] + 1] += c.step_bytes[i];
  for (let i = 1; i <= n; i++) {
    device.live[i] += device.live[i - 1];
    device.pending[i] += device.pending[i - 1];
    device.reserved[i] += device.reserved[i - 1];
  }
  device.clock = c.time_step.length === n && n > 0 ? running(c.time_step).subarray(1) : null;
  device.placeEnd = running(c.shelf_bytes);
}

// Sums before each item, and the whole at the end.
function running(sizes) {
  const sums = new Float64Array(sizes.length + 1);
  for (let i = 0; i < sizes.length; i++) sums[i + 1] = sums[i] + sizes[i];
  return sums;
}

// The last index whose value is at most x; -1 when there is none.
function lastAtMost(sorted, x, count = sorted.length) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

// ---- words ----

function size(bytes) {
  if (bytes === null || bytes === undefined) return "not known";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = bytes;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return (unit === 0 ? value : value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)) + " " + units[unit];
}

function duration(ns) {
  const units = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9], ["min", 6e10], ["h", 3.6e12]];
  const [unit, scale] = units.filter(([, least]) => Math.abs(ns) >= least).pop() ?? units[0];
  return (ns / scale).toFixed(ns / scale >= 100 ? 0 : 2) + " " + unit;
}

const hex = address => "0x" + address.toString(16);
const addressOfBlock = (device, b) => {
  const s = device.blockSegment[b];
  return hex(BigInt(device.segments[s]) + BigInt(device.blockStart[b] - device.segmentStart[s]));
};
const addressOfLife = (device, i) => {
  const place = device.column.life_place[i], shelf = Math.max(0, lastAtMost(device.placeEnd, place, device.shelves.length));
  return hex(BigInt(device.shelves[shelf]) + BigInt(place - device.placeEnd[shelf]));
};

function frames(about, stack) {
  const c = about.column, first = c.stack_first[stack], list = [];
  for (let i = 0; i < c.stack_count[stack]; i++) {
    const frame = c.stack_frames[first + i], line = c.frame_line[frame], file = about.strings[c.frame_file[frame]];
    list.push(about.strings[c.frame_function[frame]] + (file ? ` (${file}${line ? ":" + line : ""})` : ""));
  }
  return list;
}

// Frames that tell something: of a Python program those of its own language, of others those outside the allocator.
function tellingFrames(list) {
  const python = list.filter(frame => /\.py(:\d+)?\)$/.test(frame));
  if (python.length > 0) return python;
  const outside = list.findIndex(frame => !/::unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|libcudamempool/.test(frame));
  return outside > 0 ? list.slice(outside) : list;
}
const telling = list => tellingFrames(list)[0] ?? "";
