"""Expressions, scopes and values that node agrees with."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import ExpressionError
from sidecar.state.script import Script
from sidecar.state.values import same
from sidecar.state.world import Returns, World

CASES = json.loads((Path(__file__).parent / "vectors.json").read_text())["cases"]
ODD = {"undefined": None, "NaN": math.nan, "Infinity": math.inf}


@pytest.fixture(scope="module", params=[True, False], ids=["worker", "in-process"])
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    with Script(worker=request.param) as script:
        yield script


@functools.cache
def one_world(script: Script) -> World:
    return World(script)


def python(value: Any) -> Any:
    if isinstance(value, dict):
        return ODD[value["$js"]] if "$js" in value else {key: python(one) for key, one in value.items()}
    return [python(one) for one in value] if isinstance(value, list) else value


def scope(case: dict[str, Any]) -> dict[str, Any]:
    host = {name: re.search("'(.+)'", text) for name, text in case.get("host", {}).items()}
    calls = {name: Returns((found[1],)) for name, found in host.items() if found}
    return {**python(case["scope"]), **calls}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_an_expression_gives_what_node_gives(script: Script, case: dict[str, Any]) -> None:
    world = one_world(script)
    program = script.compile(case["source"])
    if "throws" in case:
        with pytest.raises(ExpressionError, match=f"^{case['throws']}: "):
            world.run(program, scope(case))
        return
    found = world.run(program, scope(case))
    expected = case["expected"]
    if isinstance(expected, dict) and "$match" in expected:
        assert re.search(expected["$match"], found)
    else:
        assert same(found, python(expected))
        assert type(found) is type(python(expected))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_an_expression_gives_the_same_on_the_values_of_a_world(script: Script, case: dict[str, Any]) -> None:
    world = World(script)
    given = scope(case)
    for name, value in given.items():
        if not isinstance(value, Returns):
            world.set(name, value)
    program = script.compile(case["source"])
    outcomes: list[Any] = []
    for extra in (given, {name: value for name, value in given.items() if isinstance(value, Returns)}):
        try:
            outcomes.append(world.run(program, extra))
        except ExpressionError as error:
            outcomes.append(str(error))
    world.close()
    assert same(*outcomes)
