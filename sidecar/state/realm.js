// Makes a fresh engine the world of one run: frozen, without a clock, holding the run's values. `globals` are the names
// that expressions may use. It is evaluated once for each world, and returns a function that gives the realm's three
// entries by name.
((globals) => {
"use strict";
const { freeze, defineProperty, getPrototypeOf, hasOwn, values: valuesOf, keys: keysOf } = Object;
const { ownKeys, getOwnPropertyDescriptor, construct } = Reflect;
const { isArray } = Array;
const { parse, stringify } = JSON;
const everything = globalThis;
const refuse = (text) => function () { throw new TypeError(text); };

// No clock and no chance: a run that is repeated gives the same.
const NativeDate = Date;
const NO_CLOCK = "an expression has no clock; use now(), or give Date a value such as new Date(now())";
function SafeDate(...given) {
  if (!new.target || given.length === 0) throw new TypeError(NO_CLOCK);
  return construct(NativeDate, given, new.target);
}
for (const key of ["UTC", "parse"]) defineProperty(SafeDate, key, getOwnPropertyDescriptor(NativeDate, key));
defineProperty(SafeDate, "name", { value: "Date" });
defineProperty(SafeDate, "length", { value: 7 });
defineProperty(SafeDate, "now", { value: refuse(NO_CLOCK) });
defineProperty(SafeDate, "prototype", { value: NativeDate.prototype, writable: false });
NativeDate.prototype.constructor = SafeDate;
everything.Date = SafeDate;
Math.random = refuse("an expression has no Math.random; use uuid(), or take the value from the state");

// No code from text, by whichever of the four constructors.
const NO_CODE = refuse("an expression cannot make code from text");
const callables = [function () {}, function* () {}, async function () {}, async function* () {}];
for (const one of callables) {
  defineProperty(getPrototypeOf(one), "constructor", { value: NO_CODE, writable: false, configurable: false });
}

const keep = new Set(globals);
const hidden = [
  ...callables.map(getPrototypeOf), getPrototypeOf([][Symbol.iterator]()), getPrototypeOf(new Map().entries()),
  getPrototypeOf(new Set().values()), getPrototypeOf(""[Symbol.iterator]()), getPrototypeOf("".matchAll(/x/g)),
  getPrototypeOf(Int8Array), Promise, Promise.prototype, Iterator.from({ next() {} }),
  getPrototypeOf([].values().map((x) => x)), getPrototypeOf(async function* () {}.prototype),
];
for (const key of ownKeys(everything)) if (!keep.has(key)) delete everything[key];
delete Array.fromAsync;

// What JSON would drop or flatten without a word is an error of the result; elsewhere JSON stays what it is.
let encoding = false;
const guard = (prototype, convert) => defineProperty(prototype, "toJSON", {
  value: function () { return encoding ? convert(this) : this; }, writable: true, configurable: true,
});
const unfit = (what) => () => { throw new TypeError("the result holds " + what); };
guard(getPrototypeOf(function () {}), unfit("a function; give back what it returns"));
guard(Map.prototype, unfit("a Map; give back Object.fromEntries(map)"));
guard(Set.prototype, unfit("a Set; give back [...set]"));
guard(WeakMap.prototype, unfit("a WeakMap"));
guard(WeakSet.prototype, unfit("a WeakSet"));
guard(RegExp.prototype, unfit("a RegExp; give back its source"));
guard(BigInt.prototype, unfit("a BigInt; give back Number(x) or String(x)"));
guard(ArrayBuffer.prototype, unfit("an ArrayBuffer; give back an array"));
guard(DataView.prototype, unfit("a DataView; give back an array"));
guard(Iterator.prototype, unfit("an iterator; give back [...iterator]"));
guard(getPrototypeOf(Int8Array.prototype), (typed) => Array.from(typed));
guard(Error.prototype, (error) => ({ name: String(error.name), message: String(error.message) }));

// `o.toString = f` has to make a property of o although the inherited one is frozen: an accessor allows that.
function overridable(prototype) {
  for (const key of ownKeys(prototype)) {
    const found = getOwnPropertyDescriptor(prototype, key);
    if (!("value" in found) || !found.configurable) continue;
    const { value } = found;
    defineProperty(prototype, key, {
      get() { return value; },
      set(given) {
        if (this === prototype) throw new TypeError("'" + String(key) + "' is read-only");
        defineProperty(this, key, { value: given, writable: true, enumerable: true, configurable: true });
      },
      enumerable: found.enumerable, configurable: false,
    });
  }
}
overridable(Object.prototype);
for (const name of keep) {
  if (name.endsWith("Error")) overridable(everything[name].prototype);
}

const seen = new Set();
function lock(thing) {
  if ((typeof thing !== "object" && typeof thing !== "function") || thing === null || seen.has(thing)) return;
  seen.add(thing);
  freeze(thing);
  lock(getPrototypeOf(thing));
  for (const key of ownKeys(thing)) {
    const { value, get, set } = getOwnPropertyDescriptor(thing, key);
    lock(value); lock(get); lock(set);
  }
}
hidden.forEach(lock);
lock(everything);
seen.clear();

// The run's values, by key. Every one is deeply frozen, so a new state shares with the old what did not change,
// an undone transaction is the old references, and no expression can change what the next one sees.
const held = new Map();
const expressions = new Map();
let before = null;

function deepFreeze(value) {
  if (typeof value !== "object" || value === null) return value;
  const inside = isArray(value) ? value : valuesOf(value);
  for (let i = 0; i < inside.length; i++) {
    const one = inside[i];
    if (typeof one === "object" && one !== null) deepFreeze(one);
  }
  return freeze(value);
}

function thaw(value) {
  if (typeof value !== "object" || value === null) return value;
  if (isArray(value)) return value.map(thaw);
  const copy = { ...value };
  for (const key of keysOf(copy)) {
    const one = copy[key];
    if (typeof one === "object" && one !== null) place(copy, key, thaw(one));
  }
  return copy;
}

function place(target, key, value) {
  if (key === "__proto__") {
    defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
  } else target[key] = value;
}

// JSON has no NaN and no Infinity: they travel beside it, as [path, text].
function restore(value, odd) {
  for (const [path, text] of odd ?? []) {
    if (path.length === 0) return Number(text);
    let target = value;
    for (const key of path.slice(0, -1)) target = target[key];
    place(target, path[path.length - 1], Number(text));
  }
  return value;
}

function patched(node, path, at, value) {
  if (at === path.length) return value;
  const copy = isArray(node) ? node.slice() : { ...node };
  const key = path[at];
  place(copy, key, patched(hasOwn(copy, key) ? copy[key] : {}, path, at + 1, value));
  return freeze(copy);
}

function remember(key) {
  if (before !== null && !before.has(key)) before.set(key, held.has(key) ? [held.get(key)] : []);
}

const operations = {
  set(key, value, odd) { remember(key); held.set(key, deepFreeze(restore(value, odd))); },
  patch(key, path, value, odd) {
    remember(key);
    held.set(key, patched(held.get(key), path, 0, deepFreeze(restore(value, odd))));
  },
  remove(key) { remember(key); held.delete(key); },
  clear() { held.clear(); before = null; },
  begin() { before = new Map(); },
  commit() { before = null; },
  undo() {
    for (const [key, old] of before) {
      if (old.length === 0) held.delete(key); else held.set(key, old[0]);
    }
    before = null;
  },
};

function change(text) {
  for (const [name, ...given] of parse(text)) operations[name](...given);
}

function valueAt([key, ...path]) {
  let value = held.get(key);
  for (const step of path) {
    if (value === null || typeof value !== "object" || !hasOwn(value, step)) return undefined;
    value = value[step];
  }
  return value;
}

function inTurn(values) {
  let next = 0;
  return freeze(() => {
    if (values.length === 1) return values[0];
    if (next === values.length) throw new RangeError(`called more than ${values.length} times in one expression`);
    return values[next++];
  });
}

// How a parameter is given: a key; null, for undefined; {at: [key, …path]}; {many: [[key, …path], …]};
// [value, odd], which is the expression's own; {calls: […]}, a function that returns these in turn.
let shares = false;
function bound(how, own) {
  let value;
  if (typeof how === "string") value = held.get(how);
  else if (how === null) return undefined;
  else if (isArray(how)) return restore(how[0], how[1]);
  else if ("calls" in how) return inTurn(how.calls);
  else value = how.at ? valueAt(how.at) : how.many.map(valueAt);
  if (typeof value !== "object" || value === null) return value;
  shares = true;
  return own ? thaw(value) : value;
}

// First on the frozen values themselves. A TypeError may come from changing one, so then again on copies. An expression
// that was seen to need them, or that could hide such an error, gets them from the start.
function run(number, text) {
  const expression = expressions.get(number);
  encoding = false;
  let own = expression.own;
  for (;;) {
    shares = false;
    const given = parse(text);
    for (let i = 0; i < given.length; i++) given[i] = bound(given[i], own);
    const { code } = expression;  // called bare, so that `this` is undefined
    let value;
    try {
      value = code(...given);
    } catch (error) {
      if (own || !shares || !(error instanceof TypeError)) return failure(error);
      own = true;
      continue;
    }
    expression.own = own;
    try {
      return encode(value);
    } catch (error) {
      return failure(error);
    }
  }
}

// An error is put into words here, under the limits: its toString and its stack are the expression's code, too.
function failure(error) {
  encoding = false;
  try {
    if (!(error instanceof Error)) return ["eError: thrown: ", stringify(error) ?? String(error)].join("");
    return ["e", error.name, ": ", error.message, "\n    at \n", error.stack].join("");
  } catch {
    return "eError: something was thrown that cannot be put into words";
  }
}

// JSON text; or, by a first letter with which none begins: u, undefined; o, odd numbers before the text; e, an error.
function encode(value) {
  if (value === undefined) return "u";
  let text;
  encoding = true;
  try {
    text = stringify(value);
  } catch (error) {
    if (error instanceof TypeError && error.message === "circular reference") {
      throw new TypeError("the result refers to itself");
    }
    throw error;
  } finally {
    encoding = false;
  }
  if (text === undefined) throw new TypeError("the result is a " + typeof value);
  if (!text.includes("null")) return text;
  const odd = [];
  find(value, parse(text), [], odd);
  // Joined, since a long sum of texts is a rope, which cannot leave the engine.
  return odd.length === 0 ? text : ["o", stringify(odd), "\n", text].join("");
}

function find(value, plain, path, odd) {
  if (plain === null) {
    if (typeof value === "number") odd.push([path, String(value)]);
  } else if (typeof plain === "object" && typeof value === "object" && typeof value.toJSON !== "function") {
    for (const key of keysOf(plain)) find(value[key], plain[key], [...path, isArray(plain) ? +key : key], odd);
  }
}

const entries = {
  change, run,
  define(number, code, own) { expressions.set(number, { code, own }); },
};
return (name) => entries[name];
})
