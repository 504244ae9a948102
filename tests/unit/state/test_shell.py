"""Values in shell commands: what the text becomes, and which places are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ShellError, TemplateError
from sidecar.state.shell import compile_command, prepare, unsafe_places


def body(command: str, *values: Any) -> str:
    return prepare(command, values).body


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls {{ x }}", 'ls "${sidecar_value_1}"'),
        ("ls '{{ x }}'", "ls ''\"${sidecar_value_1}\"''"),
        ('ls "{{ x }}"', 'ls "${sidecar_value_1}"'),
        ("ls $'a\\'{{ x }}'", "ls $'a\\''\"${sidecar_value_1}\"$''"),
        ("ls --f={{ x }}", 'ls --f="${sidecar_value_1}"'),
        ("ls # it's {{ x }}", "ls # it's "),
        ("ls a#'{{ x }}'", "ls a#''\"${sidecar_value_1}\"''"),
        ('ls \\" {{ x }}', 'ls \\" "${sidecar_value_1}"'),
        ('ls "$(ls \'a" {{ x }} "b\')"', 'ls "$(ls \'a" \'"${sidecar_value_1}"\' "b\')"'),
        ('echo "$(case a in a) ls {{ x }};; b) ls "{{ x }}";; esac)" "{{ x }}"', None),
    ],
)
def test_the_reference_fits_the_quotes_around_it(command: str, expected: str | None) -> None:
    count = command.count("{{")
    expected = expected or (
        'echo "$(case a in a) ls "${sidecar_value_1}";; b) ls "${sidecar_value_2}";; esac)" "${sidecar_value_3}"'
    )
    assert body(command, *["v"] * count) == expected


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_the_text_of_a_command_does_not_depend_on_the_values(value: str) -> None:
    command = """ls {{ a }} '{{ b }}' "{{ c }}" `ls {{ d }}`"""
    prepared = prepare(command, [value] * 4)
    assert prepared.script == prepare(command, [""] * 4).script
    assert list(prepared.values.values()) == [value] * 4


def test_a_list_is_separate_words_bare_and_one_text_in_quotes() -> None:
    prepared = prepare("ls {{ l }} '{{ l }}' {{ e }}.", [["a", 1, {"k": True}]] * 2 + [[]])
    assert prepared.body == (
        'ls "${sidecar_value_1}" "${sidecar_value_2}" "${sidecar_value_3}" \'\'"${sidecar_value_4}"\'\' .'
    )
    assert list(prepared.values.values()) == ["a", "1", '{"k": true}', 'a 1 {"k": true}']


def test_names_of_ours_never_meet_the_author_s() -> None:
    prepared = prepare("sidecar_value_1=x; ls {{ x }}", ["v"])
    assert [name for name in (*prepared.values, *prepared.environment) if name.startswith("sidecar_value_1")] == []


def test_raw_is_pasted_and_the_places_behind_it_are_those_of_the_real_text() -> None:
    assert body("{{ c | raw }} {{ x }}", "ls -l", "v") == 'ls -l "${sidecar_value_1}"'
    assert body("ls {{ c | raw }}{{ x }}'", "'", "v") == "ls ''\"${sidecar_value_1}\"''"
    assert body("ls {{ l | raw }}", ["a b", "c"]) == "ls a b c"
    with pytest.raises(TemplateError, match="eval reads the value as code"):
        body("{{ c | raw }} {{ x }}", "eval", "v")


def test_quote_is_one_word_bare_and_quoted_text_inside_quotes() -> None:
    prepared = prepare('ls {{ x | quote }} "{{ x | quote }}" {{ x | json | quote }}', ["a b"] * 3)
    assert list(prepared.values.values()) == ["a b", "'a b'", '"a b"']


def test_line_numbers_of_the_command_stay() -> None:
    assert prepare("ls\nls {{ x }}\n", ["a\nb\nc"]).script.count("\n") == 2


def test_a_command_without_holes_is_left_as_it_is() -> None:
    prepared = prepare("ls *", [])
    assert (prepared.script, prepared.environment) == ("ls *", {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        (["a", "\udc00"], "surrogate"),
        (None, r"has no value \(null\); write \{\{ x \?\? '' \}\}"),
        ([None], "has no value"),
        ("é" * 200_001, "exceed 400 kB; pass big ones in a file"),
    ],
)
def test_what_no_command_can_be_given_is_an_error_that_says_so(value: object, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        prepare("ls {{ x }}", [value])
    assert caught.value.offset == 3


def test_what_raw_pastes_has_to_fit_into_a_command_too() -> None:
    for value, message in (("a\0b", "NUL"), ("\ud800", "surrogate")):
        with pytest.raises(TemplateError, match=message):
            prepare("ls {{ x | raw }}", [value])
    with pytest.raises(ShellError, match="longer than 131 kB"):
        prepare("ls {{ x | raw }}", ["x" * 131_000])


def test_a_big_value_is_split_over_variables_that_the_system_takes() -> None:
    prepared = prepare("ls {{ x }}", ["漢" * 100_000])
    assert "".join(prepared.environment.values()) == "漢" * 100_000
    assert all(len(f"{name}={value}".encode()) < 131_072 for name, value in prepared.environment.items())


@pytest.mark.parametrize(
    "command", ["echo $(( {{ x }} + 1 ))", "(( {{ x }} ))", "echo $(( $(echo '{{ x }}') ))", "a=([{{ x }}]=1)"]
)
def test_arithmetic_takes_whole_numbers_only(command: str) -> None:
    for good in (5, -3, "007"):
        prepare(command, [good])
    for bad in ("a[$(touch pwned)]", "x", "1.5", "", "٣", "1\n", [1, 2]):
        with pytest.raises(TemplateError, match="only a whole number"):
            prepare(command, [bad])


@pytest.mark.parametrize(
    "command",
    [
        "y={{ x }}; echo $((y + 1))",
        "y={{ x }}; echo $(( $y ))",
        "y={{ x }}; z=$y; (( z > 1 ))",
        "set -- {{ x }}; echo $(($1))",
        "a=(1 2); y={{ x }}; echo ${a[y]}",
        "a=(1 2); y={{ x }}; echo ${a[@]:$y}",
        "a=([$(echo {{ x }})]=1)",
    ],
)
def test_a_variable_in_arithmetic_takes_whole_numbers_only(command: str) -> None:
    assert unsafe_places(command) == []
    prepare(command, [7])
    with pytest.raises(TemplateError, match="only a whole number"):
        prepare(command, ["a[$(touch pwned)]"])


UNSAFE = [
    "cat <<EOF\n{{ x }}\nEOF",
    "cat <<'EOF' | sh\na {{ x }}\nEOF\n",
    "cat <<-\\EOF\n\t{{ x }}\n\tEOF\n",
    "cat <<A <<B\na\nA\n{{ x }}\nB\n",
    'echo "$(cat <<EOF\n{{ x }}\nEOF\n)"',
    "cat <<{{ x }}\na\n",
    "eval {{ x }}",
    "eval 'ls {{ x }}'",
    "command eval {{ x }}",
    "true && eval \"ls '{{ x }}'\"",
    'eval "$(echo {{ x }})"',
    "sh -c 'ls {{ x }}'",
    'bash -euc "ls {{ x }}"',
    "timeout 5 /bin/bash -c 'ls {{ x }}'",
    "find . -exec sh -c 'ls {{ x }}' \\;",
    'echo `sh -c "ls {{ x }}"`',
    "python3 -c 'print({{ x }})'",
    'node -e "{{ x }}"',
    "perl -pe 's/{{ x }}//'",
    "awk -F: '/{{ x }}/' file",
    "ssh host ls {{ x }}",
    "ssh -q host \"ls '{{ x | quote }}'\"",
    "sh -c \"ls '{{ x | quote }}'\"",
    "sh -c 'ls `ls {{ x | quote }}`'",
    'sh -c "ls # {{ x | quote }}"',
    'sh -c "$prefix {{ x | quote }}"',
    "source <(echo {{ x }})",
    "bash <(echo {{ x }})",
    "trap 'rm {{ x }}' EXIT",
    "alias x={{ x }}",
    "let {{ x }}",
    "read {{ x }}",
    "unset {{ x }}",
    "declare {{ x }}=1",
    "declare -i n={{ x }}",
    "export {{ x }}",
    "printf -v {{ x }} a",
    "[ -v {{ x }} ]",
    "[[ {{ x }} -eq 1 ]]",
    "[[ a == b && 1 -lt {{ x }} ]]",
    "[[ -v {{ x }} ]]",
    "[[ a && eval {{ x }} ]]",
    "[[ a\nsh -c {{ x }}",
    "PS4={{ x }}; set -x",
    "arr[{{ x }}]=1",
    "{{ x }} --version",
    "{{ x }}",
    "'{{ x }}' a",
    "$(echo {{ x }}) a",
    "if {{ x }}; then ls; fi",
    "ls | {{ x }}",
    "A=1 {{ x }}",
    "exec {{ x }}",
    "${nothing}eval {{ x }}",
    "ba${nothing}sh -${nothing}c 'ls {{ x }}'",
    "$nothing {{ x }}",
    "sh -c -v {{ x }}",
    "sh -c $nothing -v {{ x }}",
    "bash -ce {{ x }}",
    "env A=1 {{ x }}",
    "f() { {{ x }}; }",
    "function f { {{ x }}; }",
    "case a in a) {{ x }};; esac",
    "case a in (a) ls;; *) eval {{ x }};; esac",
    '"$(case a in a) eval {{ x }};; esac)"',
    "echo ${y/{{ x }}/a}",
    "echo ${y:{{ x }}}",
    "echo ${{{ x }}}",
    'echo "${y:-"{{ x }}"}"',
    "echo \\{{ x }}",
    'echo "\\{{ x }}"',
    "echo ${{ x }}",
    'echo "${{ x }}"',
    "echo $((ls {{ x }}); ls)",
    "ls >& {{ x }}",
    "ls 2>&1'{{ x }}'",
    "ls >&$(echo {{ x }})",
    "env -S {{ x }}",
    "env -iS '{{ x }}'",
    "sed 's/a/{{ x }}/' file",
    "sed -n -e p -e {{ x }} file",
    "[[ $(echo {{ x }}) -eq 1 ]]",
    "declare -i n=$(echo {{ x }})",
    "arr[$(echo {{ x }})]=1",
    "PS4=$(echo {{ x }}); set -x",
    "[ -v $(echo {{ x }}) ]",
    # by a detour: variables, arguments of functions, pipes
    "y={{ x }}; eval $y",
    'y={{ x }}; z="a $y"; sh -c "ls ${z}"',
    'y=$(echo {{ x }}); eval "$y"',
    "y={{ x }}; $y --version",
    "y={{ x }}; [[ $y -eq 1 ]]",
    "y={{ x }}; ls >& $y",
    "y={{ x }}; echo ${!y}",
    'y={{ x }}; echo "${y@P}"',
    ': ${y:={{ x }}}; eval "$y"',
    'for y in {{ x }}; do eval "$y"; done',
    'set -- a {{ x }}; eval "$2"',
    'f() { eval "$1"; }; f {{ x }}',
    'function f { eval "$@"; }; f {{ x }}',
    "printf %s {{ x }} | sh",
    "echo {{ x }} | tee copy | sudo bash -s",
    "echo {{ x }} | timeout 5 sh",
    "echo {{ x }} | sudo -u me nice -n 5 bash",
    "timeout 5 sh <<< {{ x }}",
    "bash -c <<<{{ x }} sh",
    "echo {{ x }} | bash -ec /bin/sh",
    "echo {{ x }} | bash -c 'cat | sh'",
    "echo {{ x }} | python3 -",
    "echo {{ x }} | xargs -I% sh -c 'ls %'",
    "sh <<< {{ x }}",
]


@pytest.mark.parametrize("command", UNSAFE)
def test_a_place_where_a_value_would_be_code_is_found_and_refused(command: str) -> None:
    [(offset, why)] = unsafe_places(command)
    assert offset == command.index("{{")
    assert why
    with pytest.raises(TemplateError):
        prepare(command, ["v"])


SAFE = [
    "ls {{ x }} '{{ x }}' \"{{ x }}\" $(ls {{ x }}) `ls {{ x }}`",
    "sh -c 'ls \"$1\"' sh {{ x }}",
    'sh -c "ls {{ x | quote }}"',
    "ssh host ls {{ x | quote }}",
    "ssh {{ x }} uptime",
    "bash {{ x }}",
    "python3 -c 'import sys' {{ x }}",
    "awk -v a={{ x }} '{print a}' {{ x }}",
    "FOO={{ x }} make",
    "export FOO={{ x }}",
    "local f='{{ x }}'",
    'cd {{ x }} && make > {{ x }} 2>&1 < "{{ x }}"',
    "cat <<< {{ x }}",
    "cat <<EOF\nit's\nEOF\nls '{{ x }}'",
    "for f in {{ x }}; do echo {{ x }}; done",
    "if [ {{ x }} = a ]; then ls {{ x }}; elif [[ {{ x }} == b || ( {{ x }} < c ) ]]; then ls; fi",
    "[ {{ x }} -eq 1 ]",
    "case {{ x }} in a|{{ x }}) ls {{ x }};; *) ls;; esac; ls {{ x }}",
    "arr=(a {{ x }}); ls {{ x }}",
    "{{ x }}/run.sh {{ x }}",
    'ls ${y:-{{ x }}} "${y:-{{ x }}}"',
    "ls <(sort {{ x }}) >(cat {{ x }})",
    "( cd {{ x }}; ls ) | { grep {{ x }}; }",
    "echo $(( {{ x }} + (1) ))",
    "{{ x | raw }}",
    "eval {{ x | raw }}",
    "# eval {{ x }}",
    '"$command" {{ x }}',
    "$SUDO ls {{ x }}",
    "{{ x | raw }} {{ x }}",
    "sed -f script {{ x }}",
    "sed -e p -- {{ x }}",
    'y={{ x }}; ls "$y" ${y%a}; sh -c \'ls "$1"\' sh $y',
    "y={{ x }}; $y/run.sh",
    "y={{ x }}; eval $z",
    "f() { ls $1; }; f {{ x }}",
    "echo {{ x }} | grep sh; ls | sh",
    "echo {{ x }} | sh script.sh",
    "echo {{ x }}; sh",
]


@pytest.mark.parametrize("command", SAFE)
def test_a_place_that_can_be_protected_is_not_reported(command: str) -> None:
    assert unsafe_places(command) == []
    prepare(command, ["1"] * command.count("{{ x"))


@given(
    st.lists(
        st.sampled_from(
            [*"'\"`$(){}[]|&;<>\\#\n =a!", "{{ x }}", "{{ x | quote }}", "{{ x | raw }}", "<<E", "case a in "]
        )
    )
)
def test_no_command_makes_the_reader_do_anything_but_answer(pieces: list[str]) -> None:
    command = "".join(pieces)
    try:
        found = unsafe_places(command)
    except (TemplateError, ShellError):
        return
    assert all(command.startswith("{{", offset) for offset, _ in found)


def test_nesting_without_end_is_an_error_not_a_crash() -> None:
    with pytest.raises(ShellError, match="nested"):
        unsafe_places("echo " + "$(" * 5000 + "{{ x }}")
    with pytest.raises(ShellError, match="nested"):
        unsafe_places("echo " + "${a:-" * 5000 + "{{ x }}")


@dataclass(frozen=True)
class Name:
    """An expression that is one name."""

    name: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.name})


def test_a_command_is_compiled_once_and_prepared_many_times() -> None:
    command = compile_command("ls {{ a }} {{ b | json }}", Name)
    assert command.names == {"a", "b"}
    for value in ("x", "y"):
        prepared = command.prepare(lambda program, value=value: value + program.name)  # type: ignore[misc]
        assert list(prepared.values.values()) == [f"{value}a", f'"{value}b"']
