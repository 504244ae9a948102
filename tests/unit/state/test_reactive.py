"""The reactive state: transactions, what is recomputed and when, errors of fields, the trace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ExpressionError, SidecarError
from sidecar.state.reactive import Computation, OnError, Reactive, Transformation, Write
from sidecar.state.script import Script
from sidecar.state.values import same


@pytest.fixture(scope="module", params=[True, False], ids=["worker", "in-process"])
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    with Script(worker=request.param) as script:
        yield script


FILES = {
    "filtered": Computation("raw.file_list", "input.filter(f => !f.includes('node_modules'))"),
    "batches": Computation(
        "computed.filtered", "input.map((file, index) => ({ id: `batch_${index}`, files: [file] }))"
    ),
    "ready": Computation(
        ("computed.batches", "raw.batch_status"),
        "input[0].filter(batch => (input[1][batch.id] || 'pending') === 'pending').map(batch => batch.id)",
    ),
}


def seen(script: Script, reactive: Reactive, source: str) -> Any:
    return reactive.world.run(script.compile(source))


def test_computed_fields_follow_what_is_written(script: Script) -> None:
    reactive = Reactive(script, FILES, raw={"batch_status": {}})
    assert reactive.computed == {}
    changed = reactive.update([Write("raw.file_list", ["a.ts", "node_modules/x.js", "b.ts"])])
    assert reactive.version == 1
    assert changed == ("filtered", "batches", "ready")
    assert reactive.computed["ready"] == ["batch_0", "batch_1"]
    changed = reactive.update([Write("raw.batch_status.batch_0", "complete")])
    assert changed == ("ready",)
    assert reactive.flattened() == {
        "file_list": ["a.ts", "node_modules/x.js", "b.ts"],
        "batch_status": {"batch_0": "complete"},
        "filtered": ["a.ts", "b.ts"],
        "batches": [{"id": "batch_0", "files": ["a.ts"]}, {"id": "batch_1", "files": ["b.ts"]}],
        "ready": ["batch_1"],
    }
    assert seen(script, reactive, "[ready, filtered.length, batch_status]") == [["batch_1"], 2, {"batch_0": "complete"}]


def test_a_field_waits_until_all_its_sources_are_set(script: Script) -> None:
    fields = {
        "sum": Computation(("raw.a", "raw.b.inner"), "input[0] + input[1]"),
        "twice": Computation("computed.sum", "input * 2"),
    }
    reactive = Reactive(script, fields, declared=["a", "b"])
    assert reactive.update([Write("raw.a", 1)]) == ()
    assert reactive.update([Write("raw.b", {})]) == ()
    assert reactive.update([Write("raw.b.inner", None)]) == ("sum", "twice"), "null is set"
    assert reactive.computed == {"sum": 1, "twice": 2}
    assert reactive.update([Write("raw.b", {})]) == ("sum", "twice"), "a source is gone, and so is what needs it"
    assert reactive.computed == {}
    assert seen(script, reactive, "[sum, twice]") == [None, None]


def test_declared_names_are_null_and_others_undefined(script: Script) -> None:
    reactive = Reactive(script, {"c": Computation("raw.a", "input")}, declared=["a", "b"])
    assert seen(script, reactive, "[a === null, b === null, c === null, d === undefined]") == [True, True, True, True]
    reactive.update([Write("raw.d", 1), Write("raw.a", 2)])
    assert seen(script, reactive, "[a, b, c, d]") == [2, None, 2, 1]


def test_a_field_runs_once_per_transaction_after_everything_it_reads(script: Script) -> None:
    fields = {
        "bottom": Computation(("computed.left", "computed.right", "raw.x"), "input.join('+')"),
        "left": Computation("raw.x", "'l' + input"),
        "right": Computation(("raw.x", "raw.y"), "'r' + input.join('')"),
    }
    trace: list[Transformation] = []
    reactive = Reactive(script, fields, raw={"x": 0, "y": 0}, on_computed=trace.append)
    trace.clear()
    reactive.update([Write("raw.x", 1), Write("raw.y", 2), Write("raw.x", 3)])
    assert [one.field for one in trace] == ["left", "right", "bottom"]
    assert reactive.computed["bottom"] == "l3+r32+3"


def test_only_a_source_with_another_value_makes_a_field_run(script: Script) -> None:
    fields = {
        "size": Computation("raw.list", "input.length"),
        "big": Computation("computed.size", "input > 2"),
        "label": Computation("computed.big", "input ? 'big' : 'small'"),
        "deep": Computation("raw.config.retries", "input"),
    }
    trace: list[Transformation] = []
    raw = {"list": [1, 2], "config": {"retries": 1, "other": 1}}
    reactive = Reactive(script, fields, raw=raw, on_computed=trace.append)

    def runs(*writes: Write) -> list[str]:
        trace.clear()
        reactive.update(writes)
        return [one.field for one in trace]

    assert runs(Write("raw.list", [1, 2])) == [], "an equal value"
    assert runs(Write("raw.list", [2, 1])) == ["size"], "its result is as before"
    assert runs(Write("raw.list", [1])) == ["size", "big"]
    assert runs(Write("raw.list", [1, 2, 3])) == ["size", "big", "label"]
    assert runs(Write("raw.config.other", 2)) == [], "beside the path that it reads"
    assert runs(Write("raw.config", {"retries": 1})) == []
    assert runs(Write("raw.config", {"retries": True})) == ["deep"], "true is not 1"
    assert runs(Write("raw.list", [1]), Write("raw.list", [1, 2, 3])) == [], "there and back"


@pytest.mark.parametrize(
    "bad",
    [
        [Write("raw.x", 5), Write("raw.n", -1)],
        [Write("raw.x", 5), Write("computed.double", 1)],
        [Write("raw.x", 5), Write("raw.x.y", 1)],
        [Write("raw.x", 5), Write("elsewhere.x", 1)],
        [Write("raw.x", 5), Write("raw.x", "a", "increment")],
        [Write("raw.x", 5), Write("raw.y", object())],
        [Write("raw.x", 2**60)],
        [Write("raw.list", 1, "append"), Write("raw.new", 1), Write("raw.n", -1)],
    ],
)
def test_a_failing_transaction_leaves_no_trace(script: Script, bad: list[Write]) -> None:
    fields = {
        "double": Computation("raw.x", "input * 2"),
        "checked": Computation(
            ("computed.double", "raw.n"), "if (input[1] < 0) throw new Error('negative'); return input[0] + input[1]"
        ),
    }
    reactive = Reactive(script, fields, raw={"x": 1, "n": 1, "list": [1]}, state={"s": 1})
    everything = "[x, n, list, s, double, checked, typeof new_, typeof y]"
    before = (reactive.flattened(), reactive.raw, reactive.state, reactive.computed, reactive.version)
    world_before = seen(script, reactive, everything)
    with pytest.raises(SidecarError):
        reactive.update(bad)
    assert (reactive.flattened(), reactive.raw, reactive.state, reactive.computed, reactive.version) == before
    assert seen(script, reactive, everything) == world_before
    assert reactive.update([Write("raw.x", 2)]) == ("double", "checked")
    assert reactive.computed == {"double": 4, "checked": 5}


def test_a_fallback_takes_the_place_of_an_error(script: Script) -> None:
    fields = {
        "data": Computation("raw.text", "JSON.parse(input)", on_error="use_fallback", fallback={"none": True}),
        "keys": Computation("computed.data", "Object.keys(input)"),
    }
    reactive = Reactive(script, fields)
    reactive.update([Write("raw.text", "nope")])
    assert reactive.computed == {"data": {"none": True}, "keys": ["none"]}
    reactive.update([Write("raw.text", '{"a": 1}')])
    assert reactive.computed == {"data": {"a": 1}, "keys": ["a"]}


def test_an_ignored_error_leaves_the_field_and_its_readers_without_a_value(script: Script) -> None:
    fields = {
        "data": Computation("raw.text", "JSON.parse(input)", on_error="ignore"),
        "keys": Computation("computed.data", "Object.keys(input)"),
    }
    reactive = Reactive(script, fields, raw={"text": '{"a": 1}'})
    assert reactive.update([Write("raw.text", "nope")]) == ("data", "keys")
    assert reactive.flattened() == {"text": "nope"}
    assert seen(script, reactive, "[data, keys]") == [None, None]


@pytest.mark.parametrize(("value", "result"), [([6, 3], 2), ([1, 0], 0), (["x", 1], 0)])
def test_a_validation_that_is_false_is_an_error_of_the_field(script: Script, value: list[Any], result: int) -> None:
    check = "typeof output === 'number' && isFinite(output)"
    fields = {"ratio": Computation(("raw.a", "raw.b"), "input[0] / input[1]", "use_fallback", 0, check)}
    reactive = Reactive(script, fields, raw={"a": value[0], "b": value[1]})
    assert reactive.computed == {"ratio": result}


def test_a_validation_may_look_at_the_input_and_is_true_as_in_javascript(script: Script) -> None:
    fields = {"kept": Computation("raw.list", "input.slice(0, 2)", validate="output.length <= input.length && []")}
    reactive = Reactive(script, fields, raw={"list": [1, 2, 3]})
    assert reactive.computed == {"kept": [1, 2]}
    fields = {"bad": Computation("raw.list", "input", validate="output.length > 5")}
    with pytest.raises(ExpressionError, match=r"computed field 'bad': its value fails `output\.length > 5`"):
        Reactive(script, fields, raw={"list": [1]})


def test_computed_hides_raw_which_hides_state(script: Script) -> None:
    fields = {"x": Computation("raw.x", "'computed ' + input", on_error="ignore", validate="!output.includes('bad')")}
    reactive = Reactive(script, fields, state={"x": "state", "y": "state"})
    assert (reactive.flattened()["x"], seen(script, reactive, "x")) == ("state", "state")
    reactive.update([Write("raw.x", "raw"), Write("raw.y", "raw")])
    assert seen(script, reactive, "[x, y]") == ["computed raw", "raw"]
    assert reactive.flattened() == {"x": "computed raw", "y": "raw"}
    reactive.update([Write("raw.x", "bad")])
    assert (reactive.flattened()["x"], seen(script, reactive, "x")) == ("bad", "bad")


def test_the_trace_tells_field_time_trigger_input_output_duration_and_error(script: Script) -> None:
    ticks = itertools.count()
    fields = {
        "sum": Computation(("raw.a", "raw.b"), "input[0] + input[1]"),
        "bad": Computation("computed.sum", "input.nothing.here", "use_fallback", "none"),
    }
    trace: list[Transformation] = []
    before = time.time()
    reactive = Reactive(
        script, fields, raw={"a": 1, "b": 2}, on_computed=trace.append, timer=lambda: next(ticks) / 1000
    )
    reactive.update([Write("raw.b", 3)])
    assert len(trace) == 4
    assert before <= trace[0].at <= trace[-1].at <= time.time()
    one, other = trace[-2:]
    assert (one.field, one.trigger, one.input, one.output, one.error) == ("sum", "raw.b", [1, 3], 4, None)
    assert (other.field, other.trigger, other.input, other.output) == ("bad", "computed.sum", 4, "none")
    assert other.error
    assert "TypeError" in other.error
    assert one.version == 1
    assert one.applied
    assert one.duration_ms == pytest.approx(1)


def test_the_trace_has_what_was_undone_and_says_so(script: Script) -> None:
    fields = {"ok": Computation("raw.x", "input"), "fails": Computation("computed.ok", "input.a.b")}
    trace: list[Transformation] = []
    reactive = Reactive(script, fields, on_computed=trace.append)
    with pytest.raises(ExpressionError):
        reactive.update([Write("raw.x", 1)])
    assert [(one.field, one.applied) for one in trace] == [("ok", False), ("fails", False)]


@pytest.mark.parametrize("item", [7, "x" * 900, {"y" * 900: "z" * 5000}])
def test_what_a_trace_shows_of_a_large_value_is_bounded(script: Script, item: object) -> None:
    trace: list[Transformation] = []
    reactive = Reactive(script, {"n": Computation("raw.list", "input.concat(input)")}, on_computed=trace.append)
    reactive.update([Write("raw.list", [item] * 500)])
    (one,) = trace
    assert len(str(one)) < 20_000


# Random graphs: field i reads some of the raw names and of the fields before it. The transforms add, compare, pick
# inside objects, and fail for some values, with each way to deal with that.
TRANSFORMS = [
    "JSON.stringify(input)",
    "input.filter(x => typeof x === 'number').reduce((a, b) => a + b, 0) % 7",
    "input.map(x => x?.a ?? x)",
    "input.length > 1 && input[0] === input[1]",
    "{ all: input }",
    "input.map(x => x.toFixed(1))",
    "if (input[0] === 3) throw new Error('three'); return input[0]",
    "input.sort()",
]
VALUES = st.sampled_from([0, 1, 2, 3, True, None, "t", 1.5, [1, 2], {"a": 1}, {"a": 3, "b": [0]}])
ON_ERROR: list[OnError] = ["use_fallback", "propagate", "ignore"]
NAMES = ["r0", "r1", "r2"]
WRITES = st.one_of(
    st.builds(Write, st.sampled_from([f"raw.{name}" for name in NAMES]), VALUES),
    st.builds(Write, st.sampled_from([f"raw.{name}.a" for name in NAMES]), VALUES),
    st.builds(Write, st.sampled_from([f"raw.{name}" for name in NAMES]), VALUES, st.just("append")),
    st.builds(Write, st.sampled_from([f"state.{name}" for name in NAMES]), st.integers(0, 3), st.just("increment")),
)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Computation]:
    fields = {}
    for number in range(draw(st.integers(1, 6))):
        known = [f"raw.{name}" for name in NAMES] + ["raw.r0.a", "state.r1"] + [f"computed.c{i}" for i in range(number)]
        sources = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        on_error: OnError = draw(st.sampled_from(ON_ERROR))
        check = draw(st.sampled_from([None, None, "output !== 0"]))
        fields[f"c{number}"] = Computation(sources, draw(st.sampled_from(TRANSFORMS)), on_error, "fallback", check)
    order = draw(st.permutations(list(fields)))
    return {name: fields[name] for name in order}


@settings(max_examples=60)
@given(fields=graphs(), updates=st.lists(st.lists(WRITES, min_size=1, max_size=3), max_size=6))
def test_any_updates_give_what_computing_everything_from_scratch_gives(
    script: Script, fields: dict[str, Computation], updates: list[list[Write]]
) -> None:
    reactive = Reactive(script, fields)
    look = script.compile("[r0, r1, r2, c0, c1, c2, c3, c4, c5]")
    for writes in updates:
        before, world_before = reactive.flattened(), reactive.world.run(look)
        old = reactive.computed
        try:
            changed = reactive.update(writes)
        except SidecarError:
            assert same(reactive.flattened(), before)
            assert same(reactive.world.run(look), world_before)
            continue
        scratch = Reactive(script, fields, raw=reactive.raw, state=reactive.state)
        assert same(reactive.flattened(), scratch.flattened())
        assert same(reactive.world.run(look), scratch.world.run(look))
        names = {*old, *reactive.computed}
        differing = {
            n for n in names if (n in old) != (n in reactive.computed) or not same(old[n], reactive.computed[n])
        }
        assert set(changed) == differing
        scratch.close()
    reactive.close()
