// The trace viewer: sessions of one gateway, and the tree of one session. It reads the control API with the key that
// the person types. Everything that an agent or a model wrote is put in as text, never as markup.
"use strict";

const PAGE = 200; // sessions of one request
const DEPTH_MAX = 12; // branches deeper than this are not moved further to the right
const FOLDED_CHARS = 1500; // a longer context is folded
const by = (id) => document.getElementById(id);
const KEY = "sandgate-key"; // of sessionStorage: it ends with the tab

let next = null; // cursor of the next page of sessions
let asked = 0; // an answer to an older question is dropped

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = String(text);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function read(path) {
  const answer = await fetch(path, { headers: { authorization: `Bearer ${by("key").value.trim()}` } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error?.message ?? `${answer.status} ${answer.statusText}`);
  return body;
}

async function told(work) {
  by("error").hidden = true;
  try {
    await work();
  } catch (error) {
    by("error").textContent = error.message;
    by("error").hidden = false;
  }
}

// -- sessions ------------------------------------------------------------------------------------------------------

async function list({ more = false } = {}) {
  const query = new URLSearchParams({ limit: PAGE });
  if (by("job").value.trim()) query.set("job", by("job").value.trim());
  if (by("state").value) query.set("state", by("state").value);
  if (more && next) query.set("after", next);
  const page = await read(`v1/sessions?${query}`);
  const rows = page.sessions.map(row);
  if (more) by("sessions").append(...rows);
  else by("sessions").replaceChildren(...rows);
  next = page.next;
  by("more").hidden = next === null;
}

function row(session) {
  const made = element("tr", undefined, { tabindex: "0", "data-session": session.session_id });
  const forks = Object.values(session.forks).reduce((sum, count) => sum + count, 0);
  const cells = [session.session_id, session.uid, session.state, session.turns, forks, session.reward];
  made.append(...cells.map((value) => element("td", value ?? "-")));
  const open = () => told(() => show(session.session_id));
  made.addEventListener("click", open);
  made.addEventListener("keydown", (event) => event.key === "Enter" && open());
  return made;
}

// -- one session ---------------------------------------------------------------------------------------------------

async function show(id) {
  const question = ++asked;
  const tree = await read(`v1/sessions/${encodeURIComponent(id)}/tree`);
  if (question !== asked) return;
  for (const other of by("sessions").children)
    other.setAttribute("aria-selected", String(other.dataset.session === id));
  const again = element("button", "Read again");
  again.addEventListener("click", () => told(() => show(id)));
  by("trace").replaceChildren(element("h2", id), again, facts(tree), ...layOut(tree).map(turnView));
}

function facts(tree) {
  const made = element("dl");
  const rows = {
    job: tree.job, task: tree.uid, sample: tree.sample_index, attempt: tree.attempt, state: tree.state,
    reward: tree.reward, "sampled tokens": tree.sampled_tokens, tokens: tree.tokens,
    failure: tree.failure_reason && `${tree.failure_class} ${tree.failure_reason}: ${tree.failure_detail}`,
  };
  for (const [name, value] of Object.entries(rows))
    if (value !== null && value !== undefined && value !== "") made.append(element("dt", name), element("dd", value));
  return made;
}

// Depth first, branches before the continuation, so that a linear conversation is one column of any length
// (`sandgate show` draws the same).
function layOut(tree) {
  const known = new Set(tree.turns.map((turn) => turn.turn));
  const children = new Map();
  for (const turn of tree.turns) {
    const parent = known.has(turn.parent) ? turn.parent : null;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(turn);
  }
  const pending = (children.get(null) ?? []).map((turn) => ({ turn, depth: 0, branch: true })).reverse();
  const lines = [];
  while (pending.length) {
    const line = pending.pop();
    lines.push(line);
    const [first, ...others] = children.get(line.turn.turn) ?? [];
    if (first) pending.push({ turn: first, depth: line.depth, branch: false });
    pending.push(...others.reverse().map((turn) => ({ turn, depth: line.depth + 1, branch: true })));
  }
  return lines;
}

function turnView({ turn, depth, branch }) {
  const made = element("section", undefined, { class: branch ? "turn branch" : "turn", "data-turn": turn.turn });
  made.style.marginLeft = `${2 * Math.min(depth, DEPTH_MAX)}rem`;
  const head = element("div", undefined, { class: "head" });
  const note = (text, kind = "") => head.append(element("span", text, { class: kind }));
  head.append(element("b", turn.turn));
  note(`${turn.prompt_tokens} prompt, ${turn.sampled_tokens} sampled`);
  note(turn.finish);
  note(turn.versions.map(([version]) => `v${version}`).join(" "));
  if (turn.sampled_tokens) note(`mean logprob ${(turn.logprob_sum / turn.sampled_tokens).toFixed(3)}`);
  if (turn.fork) note(`fork: ${turn.fork}${turn.parent ? ` from ${turn.parent}` : ""}`, "fork");
  if (turn.role !== "main") note(turn.role_why ? `${turn.role} (${turn.role_why})` : turn.role, "role");
  for (const image of turn.images) note(`image ${image.digest.slice(0, 8)}`, "role");
  if (turn.delivered !== true) note(turn.delivered ? "partly delivered" : "not delivered", "warn");
  if (turn.resampled) note("resampled", "warn");
  if (turn.resumed) note("resumed", "warn");
  for (const text of turn.notes) note(text);
  made.append(head, ...turn.spans.map(spanView), details("details", () => settings(turn)));
  if (turn.sampled_tokens) made.append(details("sampled tokens", () => tokens(turn)));
  return made;
}

function spanView(span) {
  const text = span.text ?? span.ids.join(" ");
  const body = element("pre", text, { class: span.mask ? "sampled" : "context" });
  if (span.mask || text.length <= FOLDED_CHARS) return body;
  const folded = element("details");
  folded.append(element("summary", `context: ${span.ids.length} tokens, ${text.length} characters`), body);
  return folded;
}

// What is folded is made when it is opened: a turn may have 100,000 tokens.
function details(name, make) {
  const made = element("details");
  made.append(element("summary", name));
  made.addEventListener("toggle", () => made.childElementCount === 1 && made.append(make()));
  return made;
}

function settings(turn) {
  const { engine, build, renderer, logprobs_mode, sampling, stop_reason, thread, parent_thread, at } = turn;
  const rows = { engine, build, renderer, logprobs_mode, sampling, stop_reason, thread, parent_thread,
    at: new Date(1000 * at).toISOString() };
  return element("pre", JSON.stringify(rows, null, 1));
}

function tokens(turn) {
  const made = element("div", undefined, { class: "tokens" });
  turn.spans.at(-1).ids.forEach((id, index) => {
    const cell = element("span", id, { title: `${index}: logprob ${turn.logprobs[index]}` });
    // From clear at probability 1 to strong at e^-5: how surprised the policy was.
    cell.style.background = `rgb(207 34 46 / ${Math.min(1, -turn.logprobs[index] / 5) * 0.6})`;
    made.append(cell);
  });
  return made;
}

// -- start ---------------------------------------------------------------------------------------------------------

// `/ui#key=...&session=...` opens a session. A fragment never reaches a server, and it leaves the address at once.
const given = new URLSearchParams(location.hash.slice(1));
if (location.hash) history.replaceState(null, "", location.pathname);
by("key").value = given.get("key") ?? sessionStorage.getItem(KEY) ?? "";
by("job").value = given.get("job") ?? "";
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, by("key").value.trim());
  told(list);
});
by("more").addEventListener("click", () => told(() => list({ more: true })));
if (by("key").value)
  told(async () => {
    await list();
    if (given.get("session")) await show(given.get("session"));
  });
