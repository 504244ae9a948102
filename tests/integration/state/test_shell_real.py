"""Hostile values in commands that real shells run: nothing of them is executed, and they arrive unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ShellError, TemplateError
from sidecar.state.shell import prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sidecar.state.shell import Prepared

# `sh` is mostly one of the others.
SHELLS = list(
    {os.path.realpath(path): shell for shell in ("sh", "dash", "bash") if (path := shutil.which(shell))}.values()
)
HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "\\`touch pwned\\`",
    "; touch pwned",
    "\ntouch pwned\n",
    "& touch pwned &",
    "| touch pwned",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "'\"'\"; touch pwned #",
    "$'\\n'; touch pwned",
    "') ; touch pwned; ('",
    "a[$(touch pwned)]",
    "${x:-$(touch pwned)}",
    "$((a[$(touch pwned)]))",
    "}; touch pwned; {",
    "> pwned",
    "<(touch pwned)",
    "EOF\ntouch pwned\nEOF",
    "-n",
    "--",
    "-",
    "*",
    "b*",
    "[a-z]*",
    "?ait",
    "~",
    "~root",
    "$IFS",
    "$HOME ${HOME} $0 $$ $@",
    "!!",
    "!touch",
    "{a,b}",
    "\\",
    "\\\\",
    "trailing\\",
    "\\'",
    "'",
    '"',
    "''",
    "`",
    "$",
    "#",
    "a # b",
    " ",
    "  a  b  ",
    "\t",
    "\r\n",
    "",
    "é 漢字 Á Ÿ 😀 \u202e",
    "\x01\x7f\x1b[31m",
    "\udcff\udc81\udc88\udc80",
    "%s %n \\0 \\c",
    "12345678901234567890",
]
LONG = "x'$(touch pwned)\"`" * 5_000


class Spot(NamedTuple):
    """A command with a hole; `P` prints its arguments, each with a NUL behind it; what they have to be."""

    command: str
    arguments: Callable[[str], list[str]]


def alone(value: str) -> list[str]:
    return [value]


def stripped(value: str) -> list[str]:
    """The shell takes newlines off the end of a substitution's output, whoever wrote it."""
    return [value.rstrip("\n")]


SPOTS = [
    Spot("P {{ x }}", alone),
    Spot("P '{{ x }}'", alone),
    Spot('P "{{ x }}"', alone),
    Spot("P --file={{ x }}", lambda value: [f"--file={value}"]),
    Spot("P {{ x }}.bak '-{{ x }}-' \"<{{ x }}>\"", lambda value: [f"{value}.bak", f"-{value}-", f"<{value}>"]),
    Spot("P {{ x }}{{ x }}'{{ x }}'\"{{ x }}\"", lambda value: [value * 4]),
    Spot('P "it\'s {{ x }}" \'say "{{ x }}"\'', lambda value: [f"it's {value}", f'say "{value}"']),
    Spot("P 'it'\\''s {{ x }}'", lambda value: [f"it's {value}"]),
    Spot('P "\\"{{ x }}\\"" \\"{{ x }}\\"', lambda value: [f'"{value}"'] * 2),
    Spot('y={{ x }}; P "$y"', alone),
    Spot('y=\'{{ x }}\' z="{{ x }}"; P "$y" "$z"', lambda value: [value, value]),
    Spot('P "$(printf %s {{ x }})"', stripped),
    Spot("P \"$(printf %s '{{ x }}')\"", stripped),
    Spot('P "$(printf %s "{{ x }}")"', stripped),
    Spot('P "`printf %s {{ x }}`"', stripped),
    Spot("P \"`printf %s '{{ x }}'`\"", stripped),
    Spot('P "`printf %s \\"{{ x }}\\"`"', stripped),
    Spot('y=`printf %s "{{ x }}"`; P "$y"', stripped),
    Spot(
        'y=`printf %s \\`printf %s "{{ x }}" | od -An -tx1 -v | tr -d " \\\\n"\\``; P "$y"',
        lambda value: [as_hex(value)],
    ),
    Spot('P "$(printf %s "$(printf %s "`printf %s "{{ x }}"`")")"', stripped),
    Spot('P "${nothing:-{{ x }}}"', alone),
    Spot("P ${nothing:-{{ x }}} ${nothing-'{{ x }}'} ${nothing:-\"{{ x }}\"}", lambda value: [value] * 3),
    Spot("P \"${nothing:-'{{ x }}'}\"", lambda value: [f"'{value}'"]),
    Spot("for y in {{ x }} '{{ x }}'; do P \"$y\"; done", lambda value: [value, value]),
    Spot("case {{ x }} in '{{ x }}') P yes;; *) P no;; esac", lambda value: ["yes"]),
    Spot('P "$(case a in a) printf %s "{{ x }}";; esac)" {{ x }}', lambda value: [value.rstrip("\n"), value]),
    Spot('f() { P "$1" {{ x }}; }; f {{ x }}', lambda value: [value, value]),
    Spot("P a # it's {{ x }}\nP {{ x }}", lambda value: ["a", value]),
    Spot("cat <<EOF >/dev/null\nit's\nEOF\nP '{{ x }}'", alone),
    Spot('sh -c \'printf "%s\\0" "$1"\' sh {{ x }}', alone),
    Spot("sh -c \"printf '%s\\\\0' {{ x | quote }}\"", alone),
    Spot("P {{ x | quote }}", alone),
    Spot("eval printf \"'%s\\\\0'\" {{ x | quote }}", alone),
    Spot("eval \"printf '%s\\\\0' {{ x | quote }}\" '{{ x | quote }}'", lambda value: [value, value]),
    Spot('P "$(eval printf %s {{ x | quote }})"', stripped),
    Spot("( { P {{ x }}; } ) && if true; then P '{{ x }}'; fi", lambda value: [value, value]),
]
BASH_SPOTS = [
    Spot("P $'{{ x }}\\t{{ x }}'", lambda value: [f"{value}\t{value}"]),
    Spot("P $'it\\'s {{ x }}' $\"{{ x }}\"", lambda value: [f"it's {value}", value]),
    Spot("[[ {{ x }} == {{ x }} && '{{ x }}' == \"{{ x }}\" ]] && P {{ x }}", alone),
    Spot('a=({{ x }} "{{ x }}"); P "${a[@]}"', lambda value: [value, value]),
    Spot("IFS= read -r -d '' y < <(printf '%s\\0' {{ x }}); P \"$y\"", alone),
]


def as_hex(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").hex()


def arguments(prepared: Prepared, shell: str, directory: Path, locale: str = "C.UTF-8") -> list[str]:
    """What the command printed; the directory holds a bait for globs and must hold nothing else afterwards."""
    (directory / "bait").touch()
    environment = {"PATH": os.environ["PATH"], "HOME": "/", "LC_ALL": locale, **prepared.environment}
    done = subprocess.run(
        [shell, "-c", prepared.script], env=environment, cwd=directory, capture_output=True, check=False
    )
    assert done.stderr == b""
    assert os.listdir(directory) == ["bait"]
    assert done.stdout == b"" or done.stdout.endswith(b"\0")
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("spot", SPOTS, ids=lambda spot: spot.command)
def test_a_hostile_value_arrives_unchanged_and_runs_nothing(spot: Spot, shell: str, tmp_path: Path) -> None:
    # Starting a program for every value takes most of the time: one shell does it, the others print themselves.
    program = str(shutil.which("printf")) if shell == SHELLS[0] else "printf"
    check(spot, shell, f"{program} '%s\\0'", tmp_path)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on this machine")
@pytest.mark.parametrize("spot", BASH_SPOTS, ids=lambda spot: spot.command)
def test_what_only_bash_knows_is_protected_too(spot: Spot, tmp_path: Path) -> None:
    check(spot, "bash", "printf '%s\\0'", tmp_path)


def check(spot: Spot, shell: str, program: str, directory: Path) -> None:
    """One shell for all the short values, one after the other, and one for the value that fills a variable."""
    command = spot.command.replace("P ", program + " ")
    holes = command.count("{{ x")
    prepared = prepare("\n".join([command] * len(HOSTILE)), [value for value in HOSTILE for _ in range(holes)])
    assert arguments(prepared, shell, directory) == [each for value in HOSTILE for each in spot.arguments(value)]
    # Not for hexadecimal digits or repetitions: a program's argument is limited to 128 KiB too.
    if all(len(each) <= len(LONG) + 20 for each in spot.arguments(LONG)) and holes < 4:
        assert arguments(prepare(command, [LONG] * holes), shell, directory) == spot.arguments(LONG)


VALUES = st.text(
    alphabet=st.sampled_from("'\"`$(){}[]|&;<>\\#\n\r\t !*?~-=%^,.ab1éÁ漢😀\x01\x7f\udc80\udc81\udcff")
    | st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    max_size=40,
)


def in_backticks(command: str) -> str:
    for character in "\\`$":
        command = command.replace(character, f"\\{character}")
    return f'printf %s "`{command}\n`"'


WRAPS: list[Callable[[str], str]] = [
    in_backticks,
    lambda command: f'printf %s "$({command}\n)"',
    lambda command: f'y=$({command}\n); printf %s "$y"',
    lambda command: f'printf %s "${{nothing:-$({command}\n)}}"',
    lambda command: f"if true; then {command}\nfi # it's",
    lambda command: f" ( {command}\n)",
    lambda command: f"case a in (a) {command}\n;; b) ;; esac",
]


@settings(max_examples=150)
@given(
    data=st.data(),
    value=VALUES,
    innermost=st.sampled_from(
        ["printf %s {{ x }}", "printf %s '{{ x }}'", 'printf %s "{{ x }}"', "printf %s a'b'{{ x }}"]
    ),
    locale=st.sampled_from(["C", "C.UTF-8"]),
)
def test_any_value_survives_any_nesting(
    data: st.DataObject, value: str, innermost: str, locale: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = innermost
    for wrap in data.draw(st.lists(st.sampled_from(WRAPS), max_size=4)):
        command = wrap(command)
    command = f"printf '%s\\0' \"$({command}\n)\""
    expected = ("ab" if "a'b'" in innermost else "") + value.rstrip("\n")
    directory = tmp_path_factory.mktemp("any")
    for shell in SHELLS[:2]:
        assert arguments(prepare(command, [value]), shell, directory, locale) == [expected]


@settings(max_examples=60)
@given(values=st.lists(VALUES, max_size=4))
def test_a_list_becomes_separate_words(values: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("list")
    command = "printf '%s\\0' start {{ x }} '{{ x }}' \"$(printf %s \"{{ x }}\")\""
    joined = " ".join(values)
    for shell in SHELLS[:2]:
        prepared = prepare(command, [values] * 3)
        assert arguments(prepared, shell, directory) == ["start", *values, joined, joined.rstrip("\n")]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_bigger_than_one_variable_arrives_whole(shell: str, tmp_path: Path) -> None:
    value = "漢'$(touch pwned)" * 15_000
    assert arguments(prepare("printf '%s\\0' {{ x }}", [value]), shell, tmp_path) == [value]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_the_command_starts_does_not_inherit_the_values(shell: str, tmp_path: Path) -> None:
    prepared = prepare("env | grep -c needle; printf '%s\\0' {{ x }}", ["needle"])
    assert arguments(prepared, shell, tmp_path) == ["0\nneedle"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_standalone_text_says_the_same_without_an_environment(shell: str, tmp_path: Path) -> None:
    prepared = prepare("printf '%s\\0' {{ x }} \"$(printf %s '{{ y }}')\"", [HOSTILE, " ".join(HOSTILE)])
    text = type(prepared)(prepared.standalone(), {}, prepared.body, prepared.values)
    assert arguments(text, shell, tmp_path) == [*HOSTILE, " ".join(HOSTILE)]


@pytest.mark.parametrize("shell", SHELLS)
def test_arithmetic_works_with_numbers(shell: str, tmp_path: Path) -> None:
    command = "printf '%s\\0' $(( {{ x }} + 1 )) \"$(( ({{ x }}) * 2 ))\""
    assert arguments(prepare(command, [41, "21"]), shell, tmp_path) == ["42", "42"]


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on this machine")
@pytest.mark.parametrize(
    ("command", "by_hand"),
    [
        ("echo $(( {{ x }} ))", 'echo $(( "$v" ))'),
        ("[[ {{ x }} -eq 0 ]]", '[[ "$v" -eq 0 ]]'),
        ("a=(1); unset {{ x }}", 'a=(1); unset "$v"'),
        ("declare -i n={{ x }}", 'declare -i n="$v"'),
        ("a=(1); echo ${a:{{ x }}}", 'a=(1); echo ${a:"$v"}'),
        ("a[{{ x }}]=1", 'a["$v"]=1'),
        ("[ -v {{ x }} ]", '[ -v "$v" ]'),
        ("printf -v {{ x }} 1", 'printf -v "$v" 1'),
        ("read {{ x }} < /dev/null", 'read "$v" < /dev/null'),
        ("PS4={{ x }}; set -x; true", 'PS4="$v"; set -x; true'),
        ("eval echo {{ x }}", 'eval echo "$v"'),
        ("sh -c 'echo {{ x }}'", "sh -c 'echo '\"$v\""),
        ("trap 'echo {{ x }}' EXIT", "trap 'echo '\"$v\" EXIT"),
        ("echo >& {{ x }}", 'echo >& "$v"'),
        ("y={{ x }}; echo $((y))", 'y="$v"; echo $((y))'),
        ("y={{ x }}; [[ $y -eq 0 ]]", 'y="$v"; [[ $y -eq 0 ]]'),
        ("y={{ x }}; echo ${!y}", 'y="$v"; echo ${!y}'),
        ("[[ $(echo {{ x }}) -eq 0 ]]", '[[ $(echo "$v") -eq 0 ]]'),
        ("a[$(echo {{ x }})]=1", 'a[$(echo "$v")]=1'),
        ("f() { eval $1; }; f {{ x }}", 'f() { eval $1; }; f "$v"'),
        ("echo {{ x }} | sh", 'echo "$v" | sh'),
    ],
)
def test_what_is_refused_would_really_run_the_value_even_from_a_variable(
    command: str, by_hand: str, tmp_path: Path
) -> None:
    value = "a[$(touch pwned)]"
    subprocess.run(
        ["bash", "-c", by_hand], env={**os.environ, "v": value}, cwd=tmp_path, capture_output=True, check=False
    )
    assert "pwned" in os.listdir(tmp_path)
    with pytest.raises(TemplateError):
        prepare(command, [value])


PIECES = [
    *(
        "echo ",
        "eval ",
        "sh -c ",
        "bash -c ",
        "exec ",
        "command ",
        "trap ",
        "let ",
        "unset ",
        "declare -i ",
        "test -v ",
    ),
    *(
        "'",
        '"',
        "`",
        "\\`",
        "\\",
        "$",
        "$'",
        '$"',
        "$(",
        ")",
        "$((",
        "))",
        "(",
        "${a:-",
        "${a",
        "}",
        "{ ",
        "; }",
        "#",
        " # ",
    ),
    *("[[ ", " ]]", "[ ", " ]", " -eq ", " == ", "a=", "a=(", "a[", "]=", "case a in ", "a) ", " ;; ", "esac", "f() "),
    *(
        "<<E\n",
        "\nE\n",
        "<<<",
        "<(",
        ">&",
        "env -S ",
        "y=",
        "$y",
        "$((y",
        "!",
        "if ",
        "then ",
        "fi",
        "for i in ",
        "; do ",
        "; done",
        "\n",
        ";",
        " ",
        "&&",
        "|",
        "x",
    ),
]


@settings(max_examples=200)
@given(
    pieces=st.lists(st.sampled_from(PIECES) | st.sampled_from(["{{ x }}", "{{ x }} ", "{{ x | quote }}"]), max_size=12),
    value=st.sampled_from(
        [value for value in HOSTILE if "touch" in value] + ["touch pwned", ");touch pwned;(", "eval"]
    ),
)
def test_a_value_is_refused_or_harmless_whatever_the_command_looks_like(
    pieces: list[str], value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = "".join(pieces)
    directory = tmp_path_factory.mktemp("any")
    try:
        prepared = prepare(command, [value] * command.count("{{ x"))
    except (TemplateError, ShellError):
        return
    environment = {"PATH": os.environ["PATH"], **prepared.environment}
    for shell in SHELLS[:2]:
        subprocess.run(
            [shell, "-c", prepared.script],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    assert "pwned" not in os.listdir(directory)
