"""The evaluator: what sources mean, what crosses between Python and JavaScript, what an expression cannot reach."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ExpressionError
from sidecar.state.script import Script
from sidecar.state.script_process import realm_source
from sidecar.state.script_worker import RUN, UNSURE, VALUE, Engine, EngineRequest
from sidecar.state.values import glimpse, plain, same, truthy
from sidecar.state.world import Returns, World


@pytest.fixture(scope="module", params=[True, False], ids=["worker", "in-process"])
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    with Script(worker=request.param) as script:
        yield script


@pytest.fixture
def world(script: Script) -> Iterator[World]:
    world = World(script)
    yield world
    world.close()


def evaluate(script: Script, world: World, source: str, **extra: object) -> Any:
    return world.run(script.compile(source), extra)


def refusal(script: Script, world: World, source: str, **extra: object) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        evaluate(script, world, source, **extra)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("source", "line", "column", "said"),
    [
        ("a b", 1, 3, "'b'"),
        ("1 +", 1, 4, "incomplete expression"),
        ("input\n  .map(x => x +)\n  .length", 2, 16, "')'"),
        ("foo(", 1, 5, "incomplete expression"),
        ("1) + (2", 1, 2, "nothing opens"),
        ("1 }, function () { return (2", 1, 3, "nothing opens"),
        ("return 1 })(), (() => { return 2", 1, 10, "nothing opens"),
        ("const x = ;\nreturn x", 1, 11, "';'"),
        ("if (a) {\n  return 1", 2, 11, "incomplete expression"),
        ("a.in / 1) + (2 / 1", 1, 9, "nothing opens"),
        ("of / 1) + (2 / 1", 1, 7, "nothing opens"),
        ("a +\nasync () => 1", 2, 1, "cannot wait"),
        ("import('fs')", 1, 1, "cannot wait"),
        ("a +\n'\ud800'", 2, 2, "half a character"),
        ("", 1, 1, "empty"),
        (" // nothing\n", 1, 1, "empty"),
    ],
)
def test_a_syntax_error_says_where_in_the_source_it_is(
    script: Script, source: str, line: int, column: int, said: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        script.compile(source)
    assert caught.value.kind == "syntax"
    assert (caught.value.line, caught.value.column) == (line, column)
    assert said in caught.value.message


def test_source_that_no_parser_should_see_is_refused(script: Script, world: World) -> None:
    for source in ("(" * 100_000 + ")" * 100_000, "a" * 300_000, "[" * 50_000):
        with pytest.raises(ExpressionError) as caught:
            script.compile(source)
        assert caught.value.kind == "syntax"
    assert evaluate(script, world, "1 + 1") == 2


def test_a_runtime_error_says_what_and_where(script: Script, world: World) -> None:
    error = refusal(script, world, "input\n  .map(x => x.a.b)", input=[{}])
    assert error.kind == "runtime"
    assert error.message == "TypeError: cannot read property 'b' of undefined"
    assert error.line == 2
    assert "(line 2" in str(error)
    assert refusal(script, world, "a +\n\nDate.now()").line == 3, "where it called, not where the realm refused"
    assert refusal(script, world, "\nJSON.parse(x)", x='{\n\n\n"a": b}').line == 2, "of the source, not of the JSON"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("throw new Error('two\\nlines')", "Error: two lines"),
        ("throw 'a text'", 'Error: thrown: "a text"'),
        ("throw undefined", "Error: thrown: undefined"),
        ("throw {code: 7}", 'Error: thrown: {"code":7}'),
        ("throw {toString() { throw 1 }, toJSON() { throw 1 }}", "cannot be put into words"),
        ("throw new RangeError('x'.repeat(5000))", "RangeError: xxx"),
    ],
)
def test_whatever_is_thrown_becomes_one_line(script: Script, world: World, source: str, said: str) -> None:
    error = refusal(script, world, f"if (true) {source}; return 1")
    assert said in error.message
    assert len(error.message) < 600


def test_names_are_those_that_come_from_outside(script: Script) -> None:
    expected = {
        "input.map(x => x.a + y)": {"input", "y"},
        "{ total: count, nested: { deep }, method(a) { return a + b }, get g() { return h } }": {
            "count",
            "deep",
            "b",
            "h",
        },
        "x.map(x => x)": {"x"},
        "const {a, b: c = d, ...e} = f; return a + c + e + h": {"d", "f", "h"},
        "`a ${b + `${c}`} d` + /e'f/.test(g)": {"b", "c", "g"},
        "let n = 0; for (const x of input) { if (x > 1) n += x; } return n;": {"input"},
        "try { return JSON.parse(input) } catch (error) { return error.message }": {"input"},
        "function f(a, {b = z}) { return a + b } return f(q)": {"q", "z"},
        "items.reduce((sum, [first, {v}]) => sum + first + v, start)": {"items", "start"},
        "ready ? x => x : other": {"ready", "other"},
        "a /* b */ / c // d": {"a", "c"},
        "({[key]: value})": {"key", "value"},
        "file_results[item]?.hints ?? 'none'": {"file_results", "item"},
        "Object.keys(o).length > Math.max(1, undefined)": {"o"},
        "this.that, typeof what": {"what"},
    }
    assert {source: set(script.compile(source).names) for source in expected} == expected


def test_a_body_may_declare_a_name_that_the_world_has(script: Script, world: World) -> None:
    world.set("total", 7)
    assert evaluate(script, world, "let total = 1; return total") == 1
    assert evaluate(script, world, "var total; return total") is None
    assert evaluate(script, world, "return total") == 7


def test_what_the_caller_gives_beats_the_world_and_the_rest_is_undefined(script: Script, world: World) -> None:
    world.set("item", "the world's")
    assert evaluate(script, world, "item") == "the world's"
    assert evaluate(script, world, "item", item="mine") == "mine"
    assert evaluate(script, world, "typeof nobody + typeof item") == "undefinedstring"
    world.remove("item")
    assert evaluate(script, world, "typeof item") == "undefined"


def test_host_functions_return_what_they_were_given(script: Script, world: World) -> None:
    hosts = {"now": Returns(("2026-01-01",)), "uuid": Returns(("a", "b"))}
    assert world.run(script.compile("[now(), now(), uuid(), uuid()]"), hosts) == ["2026-01-01", "2026-01-01", "a", "b"]
    with pytest.raises(ExpressionError, match="more than 2 times"):
        world.run(script.compile("[uuid(), uuid(), uuid()]"), hosts)
    assert evaluate(script, world, "new Date(now()).getTime()", now=Returns(("1970-01-01T00:00:01Z",))) == 1000


@pytest.mark.parametrize(
    "source", ["new Date()", "Date()", "Date.now()", "Math.random()", "new (new Date(0)).constructor()"]
)
def test_there_is_no_clock_and_no_chance(script: Script, world: World, source: str) -> None:
    assert "an expression has no" in refusal(script, world, source).message


@pytest.mark.parametrize(
    "source",
    [
        "(() => 1).constructor('return 1')()",
        "(function* () {}).constructor('yield 1')",
        "Object.getPrototypeOf(class {}).constructor('1')",
        "[].map.constructor('return 1')()",
    ],
)
def test_no_code_comes_from_text(script: Script, world: World, source: str) -> None:
    assert "cannot make code from text" in refusal(script, world, source).message


def test_what_is_not_for_expressions_is_not_there(script: Script, world: World) -> None:
    names = ["eval", "Function", "globalThis", "performance", "Promise", "WeakRef", "SharedArrayBuffer", "Atomics"]
    names += ["process", "require", "console", "std", "os", "setTimeout", "queueMicrotask", "gc", "print"]
    for name in names:
        # `eval` is a reserved word, so it is not bound as an undefined name is.
        assert evaluate(script, world, f"typeof {name}") == "undefined", name
    assert evaluate(script, world, "this") is None
    assert evaluate(script, world, "typeof Array.fromAsync") == "undefined"


POISON = [
    "Array.prototype.map = () => 'poisoned'",
    "Array.prototype.extra = 1",
    "Object.prototype.polluted = 1",
    "Object.prototype.toString = () => 'poisoned'",
    "({}).__proto__.polluted = 1",
    "Object.setPrototypeOf(Array.prototype, null)",
    "JSON.stringify = () => '1'",
    "JSON.parse = () => 'poisoned'",
    "Math.max = () => 0",
    "delete String.prototype.trim",
    "Object.defineProperty(Number.prototype, 'x', {value: 1})",
    "Symbol.iterator.description.constructor.prototype.x = 1",
    "[][Symbol.iterator]().__proto__.next = () => ({done: true})",
    "new Map().entries().__proto__.next = 1",
    "(function* () {})().__proto__.__proto__.next = 1",
    "Object.getPrototypeOf(Int8Array).prototype.fill = 1",
    "Object.getPrototypeOf([].values().map(x => x)).next = 1",
    "''.matchAll(/x/g).__proto__.next = 1",
    "RegExp.prototype.exec = () => null",
    "Error.prototype.name = 'poisoned'",
    "Function.prototype.call = 1",
    "Date.prototype.getTime = () => 0",
    "Date.UTC = () => 0",
    "Set.prototype.has = () => true",
    "(() => 1).__proto__.x = 1",
    "TypeError.prototype.message = 'poisoned'",
    "Object.freeze = x => x",
    "Reflect.ownKeys = () => []",
    "Iterator.prototype.toJSON = 1",
    "undefined = 1",
    "NaN = 1",
]


@pytest.mark.parametrize("source", POISON)
def test_no_expression_can_poison_another(script: Script, world: World, source: str) -> None:
    refusal(script, world, f"{source}; return 1" if "=" not in source else f"({source}); return 1")
    healthy = """{
      mapped: [1, 2].map(x => x * 2), spread: [...new Set([1, 1])], object: `${{}}`, trimmed: ' a '.trim(),
      max: Math.max(1, 2), keys: Object.keys({a: 1}), leaked: [].extra ?? ({}).polluted ?? (1).x ?? (() => 1).x ?? null,
      entries: [...new Map([[1, 2]])], matched: [...'axa'.matchAll(/a/g)].length, error: String(new TypeError('e')),
      parsed: JSON.parse('[1]'), date: new Date(5).getTime(), generated: [...(function* () { yield 1 })()],
    }"""
    assert evaluate(script, world, healthy) == {
        "mapped": [2, 4], "spread": [1], "object": "[object Object]", "trimmed": "a", "max": 2, "keys": ["a"],
        "leaked": None, "entries": [[1, 2]], "matched": 2, "error": "TypeError: e", "parsed": [1], "date": 5,
        "generated": [1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "gives"),
    [
        ("input.sort()", [1, 2, 3]),
        ("input.push(4) && input", [3, 1, 2, 4]),
        ("(input[0] = 'x', input)", ["x", 1, 2]),
        ("nested.deep.list.reverse()", [2, 1]),
        ("(delete nested.deep, nested)", {}),
        ("Object.assign(nested, {a: 1}).a", 1),
        ("try { input.push(4); return input.length } catch { return 'frozen' }", 4),
        ("Reflect.set(input, 0, 9) && input[0]", 9),
        ("Object.isFrozen(input)", False),
        ("for (const x of input) nested.deep.list.push(x); return nested.deep.list.length", 5),
        ("input.length = 0; return input", []),
    ],
)
def test_an_expression_changes_its_own_copy_and_never_what_the_next_one_sees(
    script: Script, world: World, source: str, gives: object
) -> None:
    values = {"input": [3, 1, 2], "nested": {"deep": {"list": [1, 2]}}}
    for name, value in values.items():
        world.set(name, value)
    program = script.compile(source)
    for _ in range(3):
        assert world.run(program) == gives
        assert world.run(program, values) == gives
        assert evaluate(script, world, "[input, nested]") == [[3, 1, 2], {"deep": {"list": [1, 2]}}]
    assert values == {"input": [3, 1, 2], "nested": {"deep": {"list": [1, 2]}}}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x => x", "a function"),
        ("({deep: [function () {}]})", "a function"),
        ("class {}", "a function"),
        ("new Map([[1, 2]])", "a Map; give back Object.fromEntries(map)"),
        ("[new Set([1])]", "a Set; give back [...set]"),
        ("/a/", "a RegExp"),
        ("10n", "a BigInt"),
        ("({a: 1n})", "a BigInt"),
        ("[1].values()", "an iterator"),
        ("(function* () {})()", "an iterator"),
        ("new ArrayBuffer(4)", "an ArrayBuffer"),
        ("Symbol('s')", "is a symbol"),
        ("const a = []; a.push(a); return a", "refers to itself"),
        ("const o = {}; o.o = {o}; return o", "refers to itself"),
    ],
)
def test_a_result_that_is_not_data_is_an_error_that_says_so(
    script: Script, world: World, source: str, said: str
) -> None:
    error = refusal(script, world, source)
    assert said in error.message
    assert error.kind == "value"


def test_results_as_json_has_them(script: Script, world: World) -> None:
    assert evaluate(script, world, "({a: undefined, b: [undefined]})") == {"b": [None]}
    assert evaluate(script, world, "new Uint8Array(2)") == [0, 0]
    assert evaluate(script, world, "new TypeError('bad')") == {"name": "TypeError", "message": "bad"}
    assert evaluate(script, world, "[new String('s'), new Number(1), Object(true)]") == ["s", 1, True]
    assert evaluate(script, world, "JSON.stringify({f: () => 1, m: new Map()})") == '{"m":{}}'
    assert evaluate(script, world, "({toJSON: () => NaN})") is None
    assert isinstance(evaluate(script, world, "4 / 2"), int)
    zero = evaluate(script, world, "-0")
    assert (zero, math.copysign(1, zero)) == (0, 1), "JSON has one zero"
    assert evaluate(script, world, "Object.is(x, -0)", x=-0.0) is True
    large = evaluate(script, world, "[2 ** 60, -(2 ** 53), 2 ** 53 - 1]")
    assert large == [2.0**60, -(2.0**53), 2**53 - 1]
    assert evaluate(script, world, "x", x=large) == large


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63, 10**30])
def test_an_integer_that_javascript_would_round_is_refused_with_its_place(
    script: Script, world: World, number: int
) -> None:
    error = refusal(script, world, "x", x={"rows": [1, {"id": number}]})
    assert f"x.rows[1].id is {number}" in error.message
    assert "keep it as text" in error.message
    world.set("big", number)
    assert evaluate(script, world, "1") == 1, "what reads something else is not concerned"
    assert refusal(script, world, "big").kind == "value"


def test_what_is_not_data_does_not_go_in(script: Script, world: World) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for value, said in [
        (datetime.date(2026, 1, 1), "not data"),
        ({1, 2}, "not data"),
        (circle, "itself"),
        (deep, "deep"),
    ]:
        error = refusal(script, world, "x", x=value)
        assert error.kind == "value"
        assert said in error.message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats()
    | st.text(st.characters(), max_size=5),
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=4), inside, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(value=JSON, other=JSON)
def test_any_value_comes_back_as_it_went(in_process: tuple[Script, World], value: Any, other: Any) -> None:
    script, world = in_process
    assert same(evaluate(script, world, "x", x=value), value)
    world.set("x", other)
    world.set("x", value)
    assert same(evaluate(script, world, "x"), value)
    assert same(evaluate(script, world, "[x, x][0]"), value)
    assert evaluate(script, world, "!!x") is truthy(value)


@pytest.fixture(scope="module")
def in_process() -> Iterator[tuple[Script, World]]:
    with Script(worker=False) as script:
        yield script, World(script)


def test_a_change_that_fails_half_way_is_not_built_upon() -> None:
    engine = Engine(realm_source(), 0.25, 64 << 20, lambda _: None)
    code = "-(function (x) { return [x] })"
    good = '[["set","x",1],["set","x",2]]'
    assert engine.handle(EngineRequest(RUN, 1, 1, code, good, '["x"]')) == (VALUE, "[2]")
    assert engine.handle(EngineRequest(RUN, 1, 1, "", '[["set","x",3],["nonsense"]]', '["x"]'))[0] == UNSURE
    assert engine.handle(EngineRequest(RUN, 1, 1, code, "", '["x"]')) == (VALUE, "[null]"), "a fresh realm"


def test_values_are_the_same_when_an_expression_cannot_tell() -> None:
    assert same({"a": [1, math.nan]}, {"a": [1.0, math.nan]})
    for one, other in [
        (True, 1),
        (False, 0),
        (None, False),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ("1", 1),
        ([True], [1]),
    ]:
        assert not same(one, other)


def test_a_plain_copy_shares_nothing_and_holds_only_data() -> None:
    value: dict[str, Any] = {"a": [1, (2, 3)]}
    copy = plain(value, "it")
    value["a"].append(4)
    assert copy == {"a": [1, [2, 3]]}
    with pytest.raises(ExpressionError, match="it has the key 1"):
        plain({1: 2}, "it")
    with pytest.raises(ExpressionError, match="it holds a date"):
        plain([datetime.date(2026, 1, 1)], "it")


def test_a_glimpse_of_something_large_is_small() -> None:
    assert glimpse({"a": [1, "b"]}) == {"a": [1, "b"]}
    seen = glimpse({"rows": [{"id": number} for number in range(10_000)], "text": "x" * 5000})
    assert len(str(seen)) < 5000
    assert "more" in str(seen)


def test_own_properties_may_have_the_names_of_inherited_ones(script: Script, world: World) -> None:
    source = """
      const o = {}; o.toString = () => 'mine'; o.constructor = 1; o.hasOwnProperty = 2;
      class Own extends Error { constructor(m) { super(m); this.name = 'Own'; } }
      const e = new TypeError('a'); e.message = 'b';
      return [`${o}`, o.constructor, o.hasOwnProperty, String(new Own('m')), String(e), Object.keys(o)];
    """
    expected = ["mine", 1, 2, "Own: m", "TypeError: b", ["toString", "constructor", "hasOwnProperty"]]
    assert evaluate(script, world, source) == expected


def test_dates_with_a_value_work(script: Script, world: World) -> None:
    source = "[new Date('2026-01-01').getTime(), new Date(0) instanceof Date, Date.UTC(1970), Date.parse('1970-01-01')]"
    assert evaluate(script, world, source) == [1767225600000, True, 0, 0]
    assert evaluate(script, world, "[new Date(0), new Date(NaN)]") == ["1970-01-01T00:00:00.000Z", None]
