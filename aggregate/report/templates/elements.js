"use strict";
// Build elements from text only: nothing in this script ever parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return element;
}

function make(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function draw(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// Characters that hide, reorder or overprint others are written out, so that what is there can be seen.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|(?<=[\u0000-\u007f])[\u200c\u200d]|[\ud800-\udfff]/gu;

function visible(text) {
  return String(text).replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    if (code === 13) return "";
    return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

const MISSING = "–";
const known = (value) => value !== null && value !== undefined;

function points(value) {
  if (!known(value)) return MISSING;
  const [scaled, whole] = [1000 * value, Math.floor(1000 * value)];
  // Half a tenth goes to the even one, as everywhere in Uplift.
  const rounded = (scaled - whole === 0.5 ? whole + (whole & 1) : Math.round(scaled)) / 10;
  return rounded > 0 ? `+${rounded}` : String(rounded || 0);
}

function dollars(value) {
  if (!known(value)) return MISSING;
  return value > 0 ? `$${value.toFixed(Math.max(2, Math.min(9, 1 - Math.floor(Math.log10(value)))))}` : "$0";
}

function seconds(milliseconds) {
  if (!known(milliseconds)) return MISSING;
  const value = milliseconds / 1000;
  return value >= 0.01 || value === 0 ? `${Number(value.toPrecision(3))} s` : "under 0.01 s";
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const OUTCOMES = { p: "passed", f: "failed", t: "timed out", e: "error", s: "not run" };
const ARMS = ["baseline", "candidate"];
