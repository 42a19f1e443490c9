// The page of fastflow serve. Texts become text nodes only; the key stays in the variable `key`.
"use strict";

const PATIENCE = 90000;  // milliseconds until the page gives up on an answer
let key = "", info = null;
const $ = (id) => document.getElementById(id);
const whole = (n) => n.toLocaleString("en");
const digits = (x) => x.toFixed(3).replace("-", "−");

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
  let said = "the server answered with no reason";
  try {
    said = String((await response.json()).error);
  } catch {}  // a proxy's answer need not be JSON
  return said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}

function say(id, text, bad = false) {
  $(id).textContent = text;
  $(id).classList.toggle("bad", bad);
}

// Send one request of a form at a time: a new one aborts the earlier one, which the server then stops computing.
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
      if (mine === running) report(state, error);
    } finally {
      if (mine === running) running = null;
    }
  });
}

function report(state, error) {
  say(state, error instanceof Told ? error.message : `This page failed: ${error.message}`, true);
}

async function open() {
  info = await (await ask("info")).json();
  const limit = info.max_input_length === null ? "" : `, texts of up to ${whole(info.max_input_length)} tokens`;
  $("model").textContent = `${info.version} · ${info.model_id}, ${info.dim} dimensions${limit}`;
  document.title = `${info.model_id} – fastflow`;
  $("key").hidden = true;
  $("open").hidden = Boolean(key);  // a link cannot send the key
  const sent = key ? " -H 'Authorization: Bearer KEY'" : "";
  $("curl").textContent = `curl -s ${new URL("v1/embeddings", location)}${sent} -H 'Content-Type: application/json' -d '{"input": "a sentence"}'`;
  $("search").hidden = !info.search;
  if (info.search) say("search-help", `${info.search.file} has ${whole(info.search.rows)} rows. A search finds the rows that are most like the query.`);
}

function askForKey() {
  if (!$("key").hidden) return;
  $("key").hidden = false;
  $("key-field").focus();
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
  say("compare-state", "");
  $(info.search ? "query" : "first").focus();
});

sender($("compare-form"), "compare-state", async (signal) => {
  const inputs = { source_sentence: $("first").value, sentences: [$("second").value] };
  const response = await ask("similarity", { inputs }, signal), cut = Number(response.headers.get("x-truncated-texts"));
  const [value] = await response.json();
  say("compare-state", `Similarity (${info.similarity}): ${digits(value)}.` + (cut ? ` A text was cut at ${info.max_input_length} tokens.` : ""));
});

// Keep the digits of a whole number in JSON that a double cannot hold, such as an id.
function exact(name, value, context) {
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? context.source : value;
}

function part(name, text) {
  const made = document.createElement("p");
  made.className = name;
  made.dir = "auto";
  made.textContent = text;
  return made;
}

function itemOf(hit) {
  const item = document.createElement("li");
  const id = hit.id === null ? [] : [`id ${hit.id}`], fields = Object.entries(hit.fields).map(([name, value]) => `${name} ${value ?? "–"}`);
  const about = [`row ${hit.row}`, ...id, ...fields].join(" · ");
  item.append(part("score", digits(hit.score)), part("text", hit.text), part("small", about));
  return item;
}

sender($("search-form"), "search-state", async (signal) => {
  $("hits").replaceChildren();
  const body = { query: $("query").value, k: Number($("rows").value) };
  const answer = JSON.parse(await (await ask("search", body, signal)).text(), exact);
  const hits = answer.hits[0];
  $("hits").replaceChildren(...hits.map(itemOf));
  say("search-state", `${hits.length === 1 ? "One row" : `${hits.length} rows`}, the most similar first. Similarity: ${answer.similarity}.`
    + (answer.truncated_texts ? ` The query was cut at ${info.max_input_length} tokens.` : ""));
});

open().catch((error) => report("compare-state", error));
