// Reads a payload of Atoll's wire format and prints it as JSON. Written from docs/wire.md alone; no packages.
//
//     node examples/wire/decode.js payload.bin        (or the bytes on standard input)
//
// Plain parts are decoded. Of a part with a coder only its description is printed, unless it was stored as it is.
// NaN, infinities, -0 and integers beyond 2^53, for which JSON.stringify has no numbers, are printed as text.
"use strict";

const fs = require("fs");

const ENVELOPE = 60;
const KINDS = ["raw", "bits", "sorted"];
const CODERS = ["plain", "entropy", "zstd"];
const DTYPES = {
  // name: [bytes, how to read one]
  float64: [8, (v, i) => v.getFloat64(i, true)],
  float32: [4, (v, i) => v.getFloat32(i, true)],
  float16: [2, (v, i) => half(v.getUint16(i, true))],
  bfloat16: [2, (v, i) => wide(v.getUint16(i, true))],
  int64: [8, (v, i) => v.getBigInt64(i, true)],
  int32: [4, (v, i) => v.getInt32(i, true)],
  int16: [2, (v, i) => v.getInt16(i, true)],
  int8: [1, (v, i) => v.getInt8(i)],
  uint64: [8, (v, i) => v.getBigUint64(i, true)],
  uint32: [4, (v, i) => v.getUint32(i, true)],
  uint16: [2, (v, i) => v.getUint16(i, true)],
  uint8: [1, (v, i) => v.getUint8(i)],
  bool: [1, (v, i) => v.getUint8(i)],
};

function need(holds, message) {
  if (!holds) throw new Error(message);
}

function half(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
}

function wide(bits) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, bits << 16, true);
  return view.getFloat32(0, true);
}

function crc32(...pieces) {
  let crc = ~0;
  for (const piece of pieces)
    for (const byte of piece) {
      crc ^= byte;
      for (let i = 0; i < 8; i++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
    }
  return ~crc >>> 0;
}

// The part of msgpack that a header uses: integers, text, arrays.
function* msgpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const take = (n) => ((at += n), at - n);
  const text = (n) => (need(at + n <= bytes.length, "header is cut"), bytes.toString("utf8", take(n), at));
  const list = (n) => Array.from({ length: n }, value);
  function value() {
    const tag = view.getUint8(take(1));
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return tag - 256;
    if (tag >= 0x90 && tag < 0xa0) return list(tag & 15);
    if (tag >= 0xa0 && tag < 0xc0) return text(tag & 31);
    switch (tag) {
      case 0xcc: return view.getUint8(take(1));
      case 0xcd: return view.getUint16(take(2));
      case 0xce: return view.getUint32(take(4));
      case 0xcf: return Number(view.getBigUint64(take(8)));
      case 0xd9: return text(view.getUint8(take(1)));
      case 0xda: return text(view.getUint16(take(2)));
      case 0xdc: return list(view.getUint16(take(2)));
    }
    throw new Error(`header: msgpack tag ${tag} is not used here`);
  }
  while (at < bytes.length) yield value();
}

function readLayout(header) {
  const values = msgpack(header);
  const next = () => values.next().value;
  const parts = Array.from({ length: next() }, () => {
    const [path, kind, dtype, shape, parameter, coder] = next();
    return { path, kind: KINDS[kind], dtype: Object.keys(DTYPES)[dtype], shape, parameter, coder: CODERS[coder] };
  });
  const empty = Array.from({ length: next() }, next);
  need(values.next().done, "header: bytes behind its end");
  return { parts, empty };
}

// `count` integers of `bits` bits each, the lowest bit first, from the bit `start` on.
function unpack(bytes, count, bits, start = 0) {
  const bit = (i) => (bytes[i >> 3] >> (i & 7)) & 1;
  return Array.from({ length: count }, (_, n) => {
    let number = 0;
    for (let i = bits - 1; i >= 0; i--) number = number * 2 + bit(start + n * bits + i);
    return number;
  });
}

function riceParameter(count, limit) {
  let r = 0;
  while (Math.floor((limit - count) / 2 ** (r + 1)) > count) r++;
  return r;
}

function positions(code, count, limit) {
  if (count === 0) return [];
  const r = riceParameter(count, limit), remainders = unpack(code, count, r), found = [];
  let at = count * r, position = -1;
  for (const remainder of remainders) {
    let quotient = 0;
    for (; !unpack(code, 1, 1, at)[0]; at++, quotient++) need(at < 8 * code.length, "positions: the code is cut");
    at++;
    position += 1 + quotient * 2 ** r + remainder;
    found.push(position);
  }
  need(position < limit, "positions: one is not below the limit");
  return found;
}

class Reader {
  constructor(bytes) {
    [this.bytes, this.at] = [bytes, 0];
  }
  take(n) {
    need(this.at + n <= this.bytes.length, `needs ${n} bytes where ${this.bytes.length - this.at} are left`);
    this.at += n;
    return this.bytes.subarray(this.at - n, this.at);
  }
  prefixed() {
    return this.take(this.take(4).readUInt32LE(0));
  }
}

function readPlain(part, reader) {
  const size = part.shape.reduce((a, b) => a * b, 1);
  if (part.kind === "sorted") return positions(reader.prefixed(), size, part.parameter);
  if (part.kind === "bits") return unpack(reader.take(Math.ceil((size * part.parameter) / 8)), size, part.parameter);
  const [width, read] = DTYPES[part.dtype], bytes = reader.take(size * width);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: size }, (_, i) => read(view, i * width));
}

function readPart(part, reader) {
  if (part.coder === "plain") return readPlain(part, reader);
  const content = reader.prefixed();
  if (content[0] === 0) return readPlain(part, new Reader(content.subarray(1)));
  return `coded with ${part.coder}: this program decodes plain parts only`;
}

function decode(data) {
  need(data.length >= ENVELOPE && data.toString("latin1", 0, 4) === "ATOL", "is no payload");
  need(data.readUInt16LE(4) === 1 && data.readUInt16LE(6) === 0, "is of another version");
  const header = data.readUInt32LE(52), body = Number(data.readBigUInt64LE(40));
  need(data.length === ENVELOPE + header + body, "has another length than it says");
  need(crc32(data.subarray(0, 56), data.subarray(60)) === data.readUInt32LE(56), "checksum is wrong");
  const layout = readLayout(data.subarray(ENVELOPE, ENVELOPE + header));
  const reader = new Reader(data.subarray(ENVELOPE + header));
  const parts = layout.parts.map((part) => ({ ...part, values: readPart(part, reader) }));
  need(reader.at === body, "has bytes behind its last part");
  return {
    kind: data.toString("latin1", 8, 32).replace(/\0+$/, ""),
    round: data.readUInt32LE(48),
    sender: data.readBigUInt64LE(32),
    parts,
    empty: layout.empty,
  };
}

function printable(_, value) {
  if (typeof value === "bigint") return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
  if (Object.is(value, -0)) return "-0";
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

try {
  console.log(JSON.stringify(decode(fs.readFileSync(process.argv[2] ?? 0)), printable));
} catch (error) {
  console.error(`decode.js: ${error.message}`);
  process.exit(1);
}
