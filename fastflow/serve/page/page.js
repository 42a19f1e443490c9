// The page of fastflow serve. Texts become text nodes alone, and the key stays in this variable.
"use strict";

const POLL = 2000, WINDOW = 60000, POINTS = 60, MOST_TEXTS = 100, PATIENCE = 90000;
let key = "";
const $ = (id) => document.getElementById(id);

// ---- requests -------------------------------------------------------------------------------------------------

class Told extends Error {}  // its message is a sentence for the user

async function ask(path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { headers, signal, method: body === undefined ? "GET" : "POST", body: JSON.stringify(body), cache: "no-store" };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") throw new Told("The server has not answered for a long time: it may be overloaded.");
    throw new Told("The server cannot be reached: it may have stopped, or the network is down.");
  }
  if (response.ok) return response;
  if (response.status === 401) askForKey();
  throw new Told(`${await failure(response)} (Status ${response.status}.)`);
}

async function failure(response) {
  if (response.status === 401) return key ? "The server does not accept this key." : "The server asks for an API key: enter it above.";
  let said = "";
  try {
    said = String((await response.json()).error);
  } catch {
    said = `the server answered with no reason`;
  }
  return said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}

function say(id, text, bad = false) {
  $(id).textContent = text;
  $(id).classList.toggle("bad", bad);
}

// One request of a form at a time: a new one takes the place of the one before, which the server then leaves out.
function sender(form, state, send) {
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) running.abort();
    const mine = running = new AbortController();
    say(state, "Computing …");
    try {
      await send(AbortSignal.any([mine.signal, AbortSignal.timeout(PATIENCE)]));
    } catch (error) {
      if (mine === running) say(state, error instanceof Told ? error.message : `This page failed: ${error.message}`, true);
    } finally {
      if (mine === running) running = null;
    }
  });
}

// ---- model and key --------------------------------------------------------------------------------------------

let info = null;

async function open() {
  info = await (await ask("info")).json();
  const limit = info.max_input_length === null ? "" : `, texts of up to ${whole(info.max_input_length)} tokens`;
  $("model").textContent = `${info.version} · ${info.model_id}, ${info.dim} dimensions${limit}`;
  document.title = `${info.model_id} – fastflow`;
  $("key").hidden = true;
  $("open").hidden = Boolean(key);  // a link cannot carry it
  const sent = key ? " -H 'Authorization: Bearer KEY'" : "";
  $("curl").textContent = `curl -s ${new URL("v1/embeddings", location)}${sent} -H 'Content-Type: application/json' -d '{"input": "a sentence"}'`;
  $("search").hidden = !info.search;
  if (info.search) say("search-help", `${info.search.file} has ${whole(info.search.rows)} rows. A search finds those that are most like the query.`);
  $("order-form").requestSubmit();
  await check();
}

function askForKey() {
  if ($("key").hidden) {
    $("key").hidden = false;
    $("key-field").focus();
  }
}

sender($("key-form"), "key-state", async () => {
  key = $("key-field").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    key = "";
    throw new Told("A key is printable ASCII without spaces.");
  }
  await open();
  $("key-field").value = "";
  say("key-state", "");
  $(info.search ? "query" : "text").focus();
});

// ---- order ----------------------------------------------------------------------------------------------------

const PLURAL = new Intl.PluralRules("en", { type: "ordinal" }), ENDS = { one: "st", two: "nd", few: "rd", other: "th" };
const nth = (n) => `${n}${ENDS[PLURAL.select(n)]}`;
const digits = (x, n) => x.toFixed(n).replace("-", "−");
const span = (values) => `from ${digits(Math.min(...values), 2)} to ${digits(Math.max(...values), 2)}`;

function draw(item, side, value, words, low, high) {
  const row = item.querySelector(`.${side}`), at = (x) => 100 * (x - low) / (high - low || 1), bar = row.querySelector(".bar");
  row.querySelector(".value").textContent = words;
  bar.style.left = `${at(Math.min(0, value))}%`;
  bar.style.width = `${at(Math.max(0, value)) - at(Math.min(0, value))}%`;
  row.querySelector(".zero").style.left = `calc(${at(0)}% - 1px)`;
  row.querySelector(".track").classList.toggle("drawn", low < 0);
}

async function compare(signal) {
  const text = $("text").value, texts = $("texts").value.split("\n").filter((line) => line.trim());
  $("places").replaceChildren();
  say("order-help", "");
  if (!text.trim() || !texts.length) {
    $(text.trim() ? "texts" : "text").closest("details")?.setAttribute("open", "");
    $(text.trim() ? "texts" : "text").focus();
    throw new Told(text.trim() ? "There is no text to order: write some, one a line." : "Your text is empty: write one.");
  }
  if (texts.length > MOST_TEXTS) throw new Told(`This page orders at most ${MOST_TEXTS} texts: leave some out.`);
  const answer = await (await ask("compare", { pairs: texts.map((each) => [text, each]) }, signal)).json();
  const raw = answer.pairs.map((pair) => pair.raw), calibrated = answer.pairs.map((pair) => pair.calibrated);
  const all = [0, ...raw, ...calibrated, ...(answer.similarity === "cosine" ? [1] : [])], low = Math.min(...all), high = Math.max(...all);
  const order = [...texts.keys()].sort((i, j) => calibrated[j] - calibrated[i]);
  $("places").replaceChildren(...order.map((i) => {
    const item = $("place").content.cloneNode(true).firstElementChild, place = 1 + raw.filter((x) => x > raw[i]).length;
    item.querySelector(".text").textContent = texts[i];
    draw(item, "calibrated", calibrated[i], digits(calibrated[i], 3), low, high);
    draw(item, "raw", raw[i], `raw ${nth(place)}, ${digits(raw[i], 3)}`, low, high);
    return item;
  }));
  const none = answer.calibration === "none", cut = answer.truncated_texts;
  document.body.classList.toggle("uncalibrated", none);
  say("order-help", none ? `Ordered by ${answer.similarity}. This model has no calibration.`
    : `Blue, which orders: ${answer.similarity} of the calibrated embeddings, ${span(calibrated)}. Brown, raw: of the encoder alone (${answer.raw_pooling}), ${span(raw)}.`);
  say("order-state", cut ? `${cut === 1 ? "One text was" : `${cut} texts were`} cut at ${info ? info.max_input_length : "the model's"} tokens.` : "");
}

sender($("order-form"), "order-state", compare);

// The share of two pairs of sentences in which the one with the higher score of the set has the higher similarity.
function ordered(scores, values) {
  let right = 0, all = 0;
  scores.forEach((a, i) => scores.slice(0, i).forEach((b, j) => {
    if (a === b) return;
    all += 1;
    if ((a - b) * (values[i] - values[j]) > 0) right += 1;
  }));
  return `${Math.round(100 * right / all)}\u00a0%`;
}

// Once a visit: the model on the small set of pairs that comes with this page.
async function check() {
  try {
    const rows = (await (await ask("pairs.tsv")).text()).trim().split("\n").slice(1).map((line) => line.split("\t"));
    const scores = rows.map((row) => Number(row[1]));
    const answer = await (await ask("compare", { pairs: rows.map((row) => row.slice(2)) }, AbortSignal.timeout(PATIENCE))).json();
    const of = (side) => ordered(scores, answer.pairs.map((pair) => pair[side]));
    const raw = answer.calibration === "none" ? "" : `, raw in ${of("raw")}`;
    say("share", `A check on ${rows.length} English pairs that we scored: of two pairs, the more alike one has the higher similarity in ${of("calibrated")} of cases${raw}. The set is small: a few points are chance.`);
  } catch (error) {
    say("share", `The check on scored pairs failed: ${error.message}`, true);
  }
}

// ---- search ---------------------------------------------------------------------------------------------------

const LONG = matchMedia("(min-width: 40rem)").matches ? 600 : 120;  // characters of a row that are shown at first

// JSON in which a whole number that this page cannot hold, as an id may be, stays as it was written.
function exact(name, value, context) {
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? context.source : value;
}

function part(name, text, tag = "p") {
  const made = document.createElement(tag);
  made.className = name;
  made.dir = "auto";
  made.textContent = text;
  return made;
}

function found(hit) {
  const item = document.createElement("li"), letters = [...hit.text];
  const text = part("text", letters.length > LONG ? `${letters.slice(0, LONG).join("")} …` : hit.text);
  item.append(part("score", digits(hit.score, 3)), text);
  if (letters.length > LONG) {
    const more = part("more", "Show the whole text", "button");
    more.type = "button";
    more.addEventListener("click", () => {
      text.textContent = hit.text;
      text.tabIndex = -1;
      text.focus();
      more.remove();
    });
    item.append(more);
  }
  const id = hit.id === null ? [] : [`id ${hit.id}`], fields = Object.entries(hit.fields).map(([name, value]) => `${name} ${value ?? "–"}`);
  item.append(part("small", [`row ${hit.row}`, ...id, ...fields].join(" · ")));
  return item;
}

async function search(signal) {
  const query = $("query").value;
  if (!query.trim()) {
    $("query").focus();
    throw new Told("The query is empty: write a text.");
  }
  $("hits").replaceChildren();
  const answer = JSON.parse(await (await ask("search", { query, k: Number($("rows").value) }, signal)).text(), exact);
  const hits = answer.hits[0];
  $("hits").replaceChildren(...hits.map(found));
  say("search-state", `${hits.length === 1 ? "One row" : `${hits.length} rows`}, the most similar first. Similarity: ${answer.similarity}.`
    + (answer.truncated_texts ? ` The query was cut at ${info.max_input_length} tokens.` : ""));
}

sender($("search-form"), "search-state", search);

// ---- figures --------------------------------------------------------------------------------------------------

// Prometheus' text -> {name: [[labels, value], ...]}
function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (match) (found[match[1]] ??= []).push([match[2] || "", Number(match[3])]);
  }
  return found;
}

const total = (sample, name) => (sample[name] || []).reduce((sum, [, value]) => sum + value, 0);
const gain = (a, b, name) => total(b, name) - total(a, name);

// The quantile q of what a histogram counted between two samples; null where it counted nothing.
function quantile(a, b, name, q) {
  const of = (sample) => (sample[`${name}_bucket`] || []).map(([labels, n]) => [Number(/le="([^"]+)"/.exec(labels)[1].replace("+Inf", "Infinity")), n]);
  const before = new Map(of(a));
  const counts = of(b).map(([edge, n]) => [edge, n - (before.get(edge) || 0)]);
  const all = counts.length ? counts[counts.length - 1][1] : 0;
  if (!all) return null;
  let under = 0, below = 0;
  for (const [edge, n] of counts) {
    if (n >= q * all) return edge === Infinity ? under : under + (edge - under) * (q * all - below) / (n - below);
    under = edge;
    below = n;
  }
  return under;
}

function ratio(a, b, name) {
  const count = gain(a, b, `${name}_count`);
  return count ? gain(a, b, `${name}_sum`) / count : null;
}

const whole = (x) => Math.round(x).toLocaleString("en");
const short = (x) => (x >= 100 ? whole(x) : x >= 10 ? x.toFixed(1) : x.toFixed(2));
const time = (x) => (x === 0 ? "0 s" : x < 1 ? `${(1000 * x).toFixed(x < 0.01 ? 1 : 0)} ms` : `${x.toFixed(2)} s`);
const FIGURES = [  // label, value of (oldest in the window, one before, latest, seconds between the last two), its words
  ["Requests read", (o, a, b) => total(b, "te_request_count"), whole],
  ["Requests a second", (o, a, b, s) => (s ? gain(a, b, "te_request_count") / s : null), short],
  ["Tokens a second", (o, a, b, s) => (s ? gain(a, b, "fastflow_tokens") / s : null), whole],
  ["Queue", (o, a, b) => total(b, "fastflow_queue_seconds"), time],
  ["Texts in a batch", (o, a, b) => ratio(o, b, "te_batch_next_size"), short],
  ["Latency, p50", (o, a, b) => quantile(o, b, "te_request_duration", 0.5), time],
  ["Latency, p99", (o, a, b) => quantile(o, b, "te_request_duration", 0.99), time],
  ["Refused", (o, a, b) => total(b, "te_request_failure"), whole],
];

const SVG = "http://www.w3.org/2000/svg";
const shown = FIGURES.map(([label]) => {
  const box = document.createElement("div"), name = document.createElement("dt"), value = document.createElement("dd");
  const chart = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "polyline");
  name.textContent = label;
  value.textContent = "–";
  chart.setAttribute("viewBox", `0 0 ${POINTS - 1} 20`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("aria-hidden", "true");
  chart.append(line);
  const drawn = document.createElement("dd");
  drawn.append(chart);
  box.append(name, value, drawn);
  $("figures").append(box);
  return { value, line, past: [] };
});

let samples = [];

function show(sample) {
  const now = performance.now(), last = samples[samples.length - 1];
  if (last && (now - last.at > WINDOW || total(sample, "te_request_count") < total(last.of, "te_request_count"))) {
    samples = [];  // the page slept, or the server was started again
    shown.forEach((figure) => { figure.past = []; });
  }
  samples.push({ at: now, of: sample });
  samples = samples.filter((each) => now - each.at <= WINDOW);
  const before = samples[Math.max(0, samples.length - 2)];
  FIGURES.forEach(([, value, words], i) => {
    const x = value(samples[0].of, before.of, sample, (now - before.at) / 1000), figure = shown[i];
    figure.value.textContent = x === null ? "–" : words(x);
    figure.past = [...figure.past, x].slice(-POINTS);
    const top = Math.max(...figure.past.map((y) => y || 0)) || 1, start = POINTS - figure.past.length;
    figure.line.setAttribute("points", figure.past.map((y, j) => `${start + j},${19 - 18 * (y || 0) / top}`).join(" "));
  });
}

let timer = 0, paused = false, polling = null;

async function poll() {
  const mine = polling = new AbortController();
  try {
    show(parse(await (await ask("metrics", undefined, AbortSignal.any([mine.signal, AbortSignal.timeout(10000)]))).text()));
    say("live-state", "");
  } catch (error) {
    if (mine === polling) say("live-state", error instanceof Told ? error.message : `This page failed: ${error.message}`, true);
  }
  if (mine === polling) timer = setTimeout(poll, POLL);
}

// Polling runs while the figures are in view and not paused.
function schedule() {
  clearTimeout(timer);
  if (polling) polling.abort();
  polling = null;
  if (!paused && !document.hidden && $("live").open) poll();
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  say("live-state", paused ? "Paused." : "");
  schedule();
});
document.addEventListener("visibilitychange", schedule);
$("live").addEventListener("toggle", schedule);

open().catch((error) => say("order-state", error instanceof Told ? error.message : `This page failed: ${error.message}`, true));
