// Displays an OpenAPI 3.1 document and sends test requests. It creates elements and never writes HTML, so that text in a document
// cannot become code.
"use strict";

const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
const DEPTH_MAX = 6;
let api = {};
const secrets = new Map();

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child != null && child !== ""));
  return element;
}

function resolve(value) {
  for (let steps = 0; steps < 16 && value && typeof value.$ref === "string"; steps += 1) {
    if (!value.$ref.startsWith("#/")) return value;
    let found = api;
    for (const part of value.$ref.slice(2).split("/")) {
      let name = part;
      try { name = decodeURIComponent(part); } catch { /* it is meant as it stands */ }
      found = found?.[name.replaceAll("~1", "/").replaceAll("~0", "~")];
    }
    if (found === undefined) return value;
    value = found;
  }
  return value ?? {};
}

function nameOf(schema) {
  return typeof schema?.$ref === "string" ? schema.$ref.split("/").pop() : "";
}

function typeOf(given) {
  const schema = resolve(given);
  if (schema === true) return "anything";
  if (schema === false) return "nothing";
  const parts = [];
  const either = schema.anyOf ?? schema.oneOf;
  if (schema.const !== undefined) parts.push(JSON.stringify(schema.const));
  else if (schema.enum) parts.push(schema.enum.map((one) => JSON.stringify(one)).join(" | "));
  else if (schema.type === "array") parts.push(`list of ${nameOf(schema.items) || typeOf(schema.items ?? true)}`);
  else if (schema.type) parts.push([].concat(schema.type).join(" | "));
  else if (either) parts.push(either.map((one) => nameOf(one) || typeOf(one)).join(" | "));
  else parts.push(schema.properties || schema.allOf ? "object" : "anything");
  if (schema.format) parts.push(schema.format);
  for (const [key, word] of [["minimum", "≥"], ["maximum", "≤"], ["minLength", "length ≥"], ["maxLength", "length ≤"],
    ["minItems", "items ≥"], ["maxItems", "items ≤"], ["pattern", "matches"]]) {
    if (schema[key] !== undefined) parts.push(`${word} ${schema[key]}`);
  }
  if (schema.default !== undefined) parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

// Renders a schema; nested schemas are collapsed.
function showSchema(given, name = "", required = false, depth = 0) {
  const schema = resolve(given);
  const head = make("span", {},
    name ? make("code", { class: required ? "required" : "" }, name) : "", name ? " " : "",
    make("span", { class: "quiet" }, [nameOf(given), typeOf(given)].filter(Boolean).join(": ")));
  const inner = [];
  if (depth < DEPTH_MAX && schema && typeof schema === "object") {
    for (const [key, property] of Object.entries(schema.properties ?? {})) {
      inner.push(showSchema(property, key, (schema.required ?? []).includes(key), depth + 1));
    }
    if (schema.items && typeof resolve(schema.items) === "object") inner.push(...inside(schema.items, "each", depth));
    for (const [index, item] of (schema.prefixItems ?? []).entries()) inner.push(showSchema(item, String(index), true, depth + 1));
    if (schema.additionalProperties && typeof schema.additionalProperties === "object") {
      inner.push(showSchema(schema.additionalProperties, "any name", false, depth + 1));
    }
    for (const key of ["allOf", "anyOf", "oneOf"]) {
      for (const part of schema[key] ?? []) inner.push(...inside(part, key === "allOf" ? "all of" : "either", depth));
    }
  }
  const text = schema?.description ? make("p", { class: "quiet" }, schema.description) : "";
  if (!inner.length) return make("li", {}, head, text);
  return make("li", {}, make("details", { open: depth < 1 }, make("summary", {}, head), text, make("ul", {}, ...inner)));
}

function inside(schema, word, depth) {
  const resolved = resolve(schema);
  const isPlain = !resolved.properties && !resolved.items && !resolved.allOf && !resolved.anyOf && !resolved.oneOf;
  return isPlain ? [] : [showSchema(schema, word, false, depth + 1)];
}

// A sample value that matches a schema.
function sample(given, depth = 0) {
  const schema = resolve(given);
  if (schema === true || schema === false || depth > DEPTH_MAX) return null;
  if (schema.const !== undefined) return schema.const;
  if (schema.examples?.length) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.allOf) return Object.assign({}, ...schema.allOf.map((part) => sample(part, depth + 1)));
  const either = schema.anyOf ?? schema.oneOf;
  if (either?.length) return sample(either[0], depth + 1);
  const type = [].concat(schema.type ?? (schema.properties ? "object" : "null"))[0];
  if (type === "object") {
    const pairs = Object.entries(schema.properties ?? {});
    return Object.fromEntries(pairs.map(([key, value]) => [key, sample(value, depth + 1)]));
  }
  if (type === "array") return schema.prefixItems ? schema.prefixItems.map((one) => sample(one, depth + 1)) : [];
  if (type === "integer" || type === "number") return schema.minimum ?? 0;
  if (type === "boolean") return false;
  return type === "string" ? "" : null;
}

function showParameters(operation, inputs) {
  if (!operation.parameters.length) return [];
  const rows = operation.parameters.map((parameter) => {
    const schema = resolve(parameter.schema);
    const input = schema.enum
      ? make("select", {}, make("option", { value: "" }), ...schema.enum.map((one) => make("option", {}, String(one))))
      : make("input", { placeholder: schema.type === "array" ? "one, two" : "" });
    const example = Object.values(parameter.examples ?? {})[0];
    if (example?.value !== undefined) input.value = String(example.value);
    input.setAttribute("aria-label", parameter.name);
    inputs.push({ parameter, input });
    return make("div", { class: "row" },
      make("div", {}, make("code", { class: parameter.required ? "required" : "" }, parameter.name),
        make("div", { class: "quiet" }, parameter.in)),
      make("div", {}, input, make("div", { class: "quiet" }, typeOf(parameter.schema)),
        parameter.description ? make("p", {}, parameter.description) : ""));
  });
  return [make("h3", {}, "Parameters"), ...rows];
}

function showBody(operation, inputs) {
  const body = operation.requestBody && resolve(operation.requestBody);
  if (!body) return [];
  const types = Object.keys(body.content ?? {});
  const type = make("select", { "aria-label": "media type" }, ...types.map((one) => make("option", {}, one)));
  const text = make("textarea", { "aria-label": "body", spellcheck: "false" });
  const schema = make("ul", {});
  const choose = () => {
    const content = body.content[type.value] ?? {};
    const example = Object.values(content.examples ?? {})[0]?.value ?? content.example ?? sample(content.schema ?? true);
    text.value = isForm(type.value) ? pairs(example) : example === null ? "" : JSON.stringify(example, null, 2);
    schema.replaceChildren(content.schema ? showSchema(content.schema) : "");
  };
  type.addEventListener("change", choose);
  choose();
  inputs.body = { type, text, required: body.required };
  return [make("h3", {}, body.required ? "Body" : "Body, if there is one"), body.description ? make("p", {}, body.description) : "",
    make("p", {}, type), make("div", { class: "schema" }, schema), text];
}

const isForm = (type) => type === "application/x-www-form-urlencoded" || type === "multipart/form-data";
const pairs = (value) => Object.entries(value ?? {}).map(([key, one]) => `${key}=${one ?? ""}`).join("\n");

function showResponses(operation) {
  const rows = Object.entries(operation.responses ?? {}).map(([status, given]) => {
    const response = resolve(given);
    const content = Object.entries(response.content ?? {}).map(([type, media]) =>
      make("div", { class: "schema" }, make("span", { class: "quiet" }, type), media.schema ? make("ul", {}, showSchema(media.schema)) : ""));
    return make("div", { class: "row" }, make("code", {}, status), make("div", {}, make("p", {}, response.description ?? ""), ...content));
  });
  return [make("h3", {}, "Responses"), ...rows];
}

function base() {
  const chosen = document.getElementById("server").value || "/";
  const url = new URL(chosen, new URL(source(), location.href));
  return url.href.replace(/\/$/, "");
}

const source = () => document.querySelector("meta[name=openapi]").content;

function request(path, method, operation, inputs) {
  let target = path;
  const query = new URLSearchParams();
  const headers = new Headers();
  for (const { parameter, input } of inputs) {
    const value = input.value;
    if (parameter.in === "path") {
      const isRest = parameter["x-rest-of-path"];
      const text = isRest ? value.split("/").map(encodeURIComponent).join("/") : encodeURIComponent(value);
      target = target.replace(`{${parameter.name}}`, () => text);
    } else if (value === "") {
      continue;
    } else if (parameter.in === "query") {
      const isList = resolve(parameter.schema).type === "array";
      for (const one of isList ? value.split(",").map((part) => part.trim()) : [value]) query.append(parameter.name, one);
    } else if (parameter.in === "header") {
      headers.append(parameter.name, value);
    }
  }
  for (const way of operation.security ?? api.security ?? []) {
    for (const name of Object.keys(way)) authorise(api.components?.securitySchemes?.[name], secrets.get(name), headers, query);
  }
  const options = { method: method.toUpperCase(), headers };
  if (inputs.body && inputs.body.text.value !== "") {
    const type = inputs.body.type.value;
    const lines = () => inputs.body.text.value.split("\n").filter(Boolean).map((line) => {
      const at = line.indexOf("=");
      return at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1)];
    });
    if (type === "multipart/form-data") {
      options.body = new FormData();
      for (const [key, value] of lines()) options.body.append(key, value);
    } else {
      options.body = isForm(type) ? new URLSearchParams(lines()) : inputs.body.text.value;
      headers.set("content-type", type === "*/*" ? "application/octet-stream" : type);
    }
  }
  const text = query.toString();
  return [base() + target + (text ? `?${text}` : ""), options];
}

function authorise(given, secret, headers, query) {
  const scheme = resolve(given);
  if (!secret) return;
  if (scheme.type === "apiKey" && scheme.in === "header") headers.set(scheme.name, secret);
  else if (scheme.type === "apiKey" && scheme.in === "query") query.set(scheme.name, secret);
  else if (scheme.scheme === "basic") headers.set("authorization", `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(secret)))}`);
  else if (scheme.type === "http" || scheme.type === "oauth2" || scheme.type === "openIdConnect") headers.set("authorization", `Bearer ${secret}`);
}

async function attempt(path, method, operation, inputs, answer) {
  answer.replaceChildren(make("p", { class: "quiet" }, "Waiting for the answer."));
  try {
    const [url, options] = request(path, method, operation, inputs);
    const begun = performance.now();
    const response = await fetch(url, options);
    const type = response.headers.get("content-type") ?? "";
    const isText = /json|text|xml|urlencoded/.test(type);
    let text = isText ? await response.text() : `${(await response.arrayBuffer()).byteLength} bytes`;
    if (/json/.test(type)) {
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it came */ }
    }
    const fields = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    answer.replaceChildren(
      make("p", {}, make("strong", {}, `${response.status} ${response.statusText}`), ` in ${Math.round(performance.now() - begun)} ms`),
      make("p", { class: "quiet" }, `${options.method} ${url}`), make("pre", {}, fields), text ? make("pre", {}, text) : "");
  } catch (error) {
    answer.replaceChildren(make("p", {}, `There is no answer: ${error.message}. The console of the browser may say more.`));
  }
}

// The operation named by the URL fragment, which is untrusted.
function chosen() {
  try { return decodeURI(location.hash); } catch { return ""; }
}

function showOperation(path, method, operation) {
  const isOpen = `#${method}${path}` === chosen();
  const details = make("details", { class: `operation${operation.deprecated ? " deprecated" : ""}`, id: method + path, open: isOpen },
    make("summary", {}, make("span", { class: `method ${method}` }, method), make("span", { class: "path" }, path),
      make("span", {}, operation.summary ?? ""), operation.deprecated ? make("span", { class: "quiet" }, "deprecated") : ""));
  const fill = () => {
    if (details.childElementCount > 1) return;
    const inputs = [];
    const answer = make("div", { "aria-live": "polite" });
    const ways = (operation.security ?? api.security ?? []).map((way) => Object.keys(way).join(" and ") || "nothing");
    details.append(make("div", { class: "inside" },
      operation.description ? make("p", {}, operation.description) : "",
      ways.length ? make("p", { class: "quiet" }, `Needs ${ways.join(" or ")}.`) : "",
      ...showParameters(operation, inputs), ...showBody(operation, inputs),
      make("p", {}, make("button", { type: "button", onclick: () => attempt(path, method, operation, inputs, answer) }, "Try it")),
      answer, ...showResponses(operation)));
  };
  details.addEventListener("toggle", fill);
  if (isOpen) fill();
  details.dataset.words = [path, method, operation.summary, operation.description, operation.operationId, ...(operation.tags ?? [])]
    .join(" ").toLowerCase();
  return details;
}

function showAll() {
  const groups = new Map((api.tags ?? []).map((tag) => [tag.name, { text: tag.description, all: [] }]));
  for (const [path, given] of Object.entries(api.paths ?? {})) {
    const item = resolve(given);
    for (const method of METHODS.filter((one) => item[one])) {
      const parameters = [...(item.parameters ?? []), ...(item[method].parameters ?? [])].map(resolve);
      const operation = { ...item[method], parameters };
      for (const tag of operation.tags?.length ? operation.tags : [""]) {
        if (!groups.has(tag)) groups.set(tag, { text: "", all: [] });
        groups.get(tag).all.push(showOperation(path, method, operation));
      }
    }
  }
  const shown = [...groups].filter(([, group]) => group.all.length).map(([name, group]) =>
    make("section", {}, name ? make("h2", {}, name) : "", group.text ? make("p", { class: "quiet" }, group.text) : "", ...group.all));
  document.getElementById("operations").replaceChildren(...(shown.length ? shown : [make("p", {}, "The document has no operations.")]));
}

function showHead() {
  document.getElementById("about").textContent = [api.info?.version && `Version ${api.info.version}`, api.info?.description]
    .filter(Boolean).join("\n\n");
  document.getElementById("controls").hidden = false;
  const server = document.getElementById("server");
  server.replaceChildren(...(api.servers ?? []).map((one) => make("option", { value: one.url }, one.description ?? one.url)));
  document.getElementById("server-label").hidden = (api.servers ?? []).length < 2;
  const schemes = Object.entries(api.components?.securitySchemes ?? {}).filter(([, given]) => {
    const scheme = resolve(given);
    return scheme.type !== "mutualTLS" && scheme.in !== "cookie";
  });
  const form = document.getElementById("security");
  form.hidden = !schemes.length;
  form.replaceChildren(...schemes.map(([name, given]) => make("label", {}, `${name} `, make("input", {
    type: "password", autocomplete: "off", placeholder: resolve(given).scheme === "basic" ? "name:password" : "token or key",
    oninput: (event) => secrets.set(name, event.target.value),
  }))));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("find").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const details of document.querySelectorAll("details.operation")) {
      details.hidden = !words.every((word) => details.dataset.words.includes(word));
    }
  });
}

fetch(source()).then(async (response) => {
  if (!response.ok) throw new Error(`status ${response.status}`);
  api = await response.json();
  showHead();
  showAll();
}).catch((error) => {
  document.getElementById("operations").replaceChildren(make("p", {}, `The document could not be loaded: ${error.message}.`));
});
