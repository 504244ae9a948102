"""Values in shell commands: what the text becomes, and which places are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.commands import check
from sidecar.errors import ShellError, TemplateError
from sidecar.state.script import Expression
from sidecar.state.shell import PreparedCommand, compile_command

if TYPE_CHECKING:
    from collections.abc import Sequence


def unevaluated(source: str) -> Expression:
    """An expression that nothing evaluates."""
    return Expression(source, (source,), (), "", 0)


def prepare(command: str | tuple[str, ...], values: Sequence[Any]) -> PreparedCommand:
    return compile_command(command, unevaluated).fill(values)


def body(command: str, *values: Any) -> str:
    return prepare(command, values).body


def errors(command: str) -> list[tuple[int, str]]:
    return [(finding.offset, finding.message) for finding in check(command)[0] if finding.severity == "error"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls {{ x }}", 'ls "${sidecar_value_1}"'),
        ("ls '{{ x }}'", "ls ''\"${sidecar_value_1}\"''"),
        ('ls "{{ x }}"', 'ls "${sidecar_value_1}"'),
        ("ls --f={{ x }}", 'ls --f="${sidecar_value_1}"'),
        ("ls # it's {{ x }}", "ls # it's "),
        ("ls a#'{{ x }}'", "ls a#''\"${sidecar_value_1}\"''"),
        ('ls \\" {{ x }}', 'ls \\" "${sidecar_value_1}"'),
        ('ls "$(ls \'a" {{ x }} "b\')"', 'ls "$(ls \'a" \'"${sidecar_value_1}"\' "b\')"'),
        ('if [ "{{ x }}" = a ]; then ls; fi', 'if [ "${sidecar_value_1}" = a ]; then ls; fi'),
    ],
)
def test_the_reference_fits_the_quotes_around_it(command: str, expected: str) -> None:
    assert body(command, "v") == expected


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_the_text_of_a_command_does_not_depend_on_the_values(value: str) -> None:
    command = """ls {{ a }} '{{ b }}' "{{ c }}" $(ls {{ d }})"""
    prepared = prepare(command, [value] * 4)
    assert prepared.script == prepare(command, [""] * 4).script
    assert list(prepared.values.values()) == [value] * 4


def test_a_list_is_separate_words_bare_and_one_text_in_quotes() -> None:
    prepared = prepare("ls {{ l }} '{{ l }}' {{ e }}", [["a", 1, {"k": True}]] * 2 + [[]])
    assert prepared.body == (
        'ls "${sidecar_value_1}" "${sidecar_value_2}" "${sidecar_value_3}" \'\'"${sidecar_value_4}"\'\' '
    )
    assert list(prepared.values.values()) == ["a", "1", '{"k": true}', 'a 1 {"k": true}']


@pytest.mark.parametrize(
    "command",
    [
        "y={{ x }}",
        "ls > {{ x }}",
        "< {{ x }} cat",
        "ls --file={{ x }}",
        "ls {{ x }}.bak",
        "[ {{ x }} = a ]",
        "find {{ x }}",
    ],
)
def test_a_list_stands_only_where_more_words_change_nothing_else(command: str) -> None:
    for items in (["f", "touch", "pwned"], ["f"], []):
        with pytest.raises(TemplateError, match="a list cannot stand here"):
            prepare(command, [items])
    prepare(command, ["f"])


def test_names_of_ours_never_meet_the_author_s() -> None:
    prepared = prepare("sidecar_value_1=x; ls {{ x }}", ["v"])
    assert [name for name in (*prepared.values, *prepared.environment) if name.startswith("sidecar_value_1")] == []


def test_raw_is_pasted_and_the_places_behind_it_are_those_of_the_real_text() -> None:
    assert body("{{ c | raw }} {{ x }}", "ls -l", "v") == 'ls -l "${sidecar_value_1}"'
    assert body("ls {{ c | raw }}{{ x }}'", "'", "v") == "ls ''\"${sidecar_value_1}\"''"
    assert body("ls {{ l | raw }}", ["a b", "c"]) == "ls a b c"
    with pytest.raises(TemplateError, match="must not have eval"):
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
    "echo {{ x }} | xargs -I% sh -c 'ls %'",
    "sh <<< {{ x }}",
    # the command's name, or its options, in a variable
    'S=sh; $S -c "ls {{ x }}"',
    '${SHELL:-sh} -c "ls {{ x }}"',
    'c=-c; sh $c "ls {{ x }}"',
    '"$command" {{ x }}',
    "{{ x }}/run.sh",
    "bash {{ x }}",
    "{eval,ls} {{ x }}",
    "/bin/s[h] -c {{ x }}",
    "e''val {{ x }}",
    "\\eval {{ x }}",
    "ls {{ x }}; . ./file",
    "alias e=eval; ls {{ x }}",
    # a script that is written out, but makes code of its arguments, its environment or its input
    "sh -c 'eval \"$1\"' sh {{ x }}",
    "sh -c '$1' sh {{ x }}",
    "export CMD={{ x }}; sh -c 'eval \"$CMD\"'",
    "trap '$y' EXIT; y={{ x }}",
    "docker exec box bash -c 'sh -c \"$1\"' bash {{ x }}",
    "zsh -c 'ls \"$1\"' zsh {{ x }}",
    '. /dev/stdin <<< "{{ x }}"',
    "echo {{ x }} | sh /dev/stdin",
    "ls {{ x }}; sh",
    "echo {{ x }} | sudo -s",
    "echo {{ x }} | ssh host",
    # programs that start a command
    "timeout 5 {{ x }}",
    "timeout -s KILL 5 {{ x }}",
    "sudo -u me {{ x }}",
    "env {{ x }} ls",
    "env A=1 -u B {{ x }}",
    "xargs {{ x }}",
    "find . -exec {{ x }} \\;",
    "find . -exec sh -c 'ls {}' \\; > {{ x }}",
    'find {{ x }} "$y" -exec ls {} +',
    "printf '%s\\0' {{ x }} | xargs -0 -n1 sh -c",
    "echo {{ x }} | xargs env",
    "echo {{ x }} | xargs timeout 5",
    "echo {{ x }} | xargs find .",
    "echo {{ x }} | xargs ssh host",
    "echo {{ x }} | xargs -I% %",
    "echo {{ x }} | xargs -I % sh -c 'ls %'",
    "echo {{ x }} | xargs --replace sh -c 'ls {}'",
    "ssh -lbob host {{ x }}",
    "ssh {{ x }} uptime",
    "docker run bash bash -c 'ls {{ x }}'",
    "kubectl exec push -- sh -c 'ls {{ x }}'",
    "./start eval {{ x }}",
    "echo {{ x }} | find . -exec sh \\;",
    "i=$1; [ {{ x }} 'arr[i]' ]",
    "time if {{ x }}; then ls; fi",
    "sh -$? {{ x }}",
    "echo {{ x }} | ssh host -- '$(cat)'",
    "echo {{ x }} | parallel",
    "watch ls {{ x }}",
    # arithmetic and subscripts
    "echo $(( {{ x }} + 1 ))",
    "(( {{ x }} ))",
    "echo $[ {{ x }} ]",
    "i={{ x }}; arr[i]=1",
    "i={{ x }}; echo ${arr[i]}",
    "i={{ x }}; echo $((i))",
    "i={{ x }}; read 'arr[i]'",
    "i={{ x }}; [ -v 'arr[i]' ]",
    "a=([{{ x }}]=1)",
    "RANDOM={{ x }}",
    "export P'S4'={{ x }}",
    "env BASH_ENV={{ x }} bash file",
    'printf {{ x }} "$y"',
    'printf "-v{{ x }}" a',
    '[ {{ x }} "$y" ]',
    "y={{ x }}; [ $y = a ]",
    'set -- {{ x }}; [ "$@" ]',
    # what dash and bash do not read alike
    "echo $'{{ x }}'",
    'echo $"{{ x }}"',
    "echo `ls {{ x }}`",
    "cat <(ls {{ x }})",
    "[[ {{ x }} == a ]]",
    "a=(1 {{ x }})",
    "echo ${y:-{{ x }}}",
    'echo "$\\\n(ls {{ x }})"',
    '"$(case a in a) ls {{ x }};; esac)"',
    "case a in a) ls;; esac | $y | cat > {{ x }}",
    "ls '{{ x }}",
    "ls $(ls {{ x }}",
    # what would take a grammar to read, or a list of every option
    "case {{ x }} in a|b*) ls;; *) ls;; esac",
    "case a in\n  *.py | *.js)\n    ls {{ x }}\n    ;;\nesac",
    'f() { ls "$1"; }; f {{ x }}',
    'tmp=$(mktemp); trap \'rm -f "$tmp"\' EXIT; cat {{ x }} > "$tmp"',
    "for y do ls {{ x }}; done",
    "setsid ls {{ x }}",
    "sudo -D /tmp ls {{ x }}",
    "bash --norc -c 'ls \"$1\"' bash {{ x }}",
    "sh -c +x 'ls {{ x }}'",
    "sh -c +x {{ x }}",
    "zsh script.zsh {{ x }}",
    "git ls-files | xargs -I a -I b cp a {{ x }}",
    "arr[ {{ x }} ]=1",
    "ls ) {{ x }}",
]


@pytest.mark.parametrize("command", UNSAFE)
def test_a_place_where_a_value_would_be_code_is_found_and_refused(command: str) -> None:
    [(offset, why)] = errors(command)
    assert offset == command.index("{{")
    assert "as a list, or pass the value in `env:`" in why
    assert "\n" not in why
    with pytest.raises(TemplateError, match="as a list, or pass the value in `env:`"):
        prepare(command, ["v"])
    assert not errors(command.replace("{{ x }}", "{{ x | raw }}").replace("{{ x | quote }}", "{{ x | raw }}"))


SAFE = [
    'ls {{ x }} \'{{ x }}\' "{{ x }}" $(ls {{ x }}) "$(ls "{{ x }}")"',
    "sh -c 'ls \"$1\"' sh {{ x }}",
    "bash -eo pipefail -c 'ls \"$1\" | cat' bash {{ x }}",
    "sh script.sh {{ x }}",
    "echo {{ x }} | sh script.sh",
    "ssh -- {{ x }} uptime",
    "ssh -i {{ x }} -p 22 host uptime",
    "ls {{ x }}; [ $? -eq 0 ] && [ $# -gt 1 ]",
    "git ls-files | xargs nice ls {{ x }}",
    "echo {{ x }} | xargs",
    "awk -v a={{ x }} '{print a}' {{ x }}",
    "FOO={{ x }} make",
    "export FOO={{ x }}",
    "local f='{{ x }}'",
    'cd {{ x }} && make > {{ x }} 2>&1 < "{{ x }}"',
    "cat <<< {{ x }}",
    'for f in {{ x }}; do echo {{ x }} "$f"; done',
    'if [ {{ x }} = a ] && ! test -e {{ x }}; then ls {{ x }}; elif [ "$(wc -l < {{ x }})" -gt 3 ]; then ls; fi',
    "[ {{ x }} -eq 1 ]",
    'while read -r line; do grep -e {{ x }} "$line"; done < {{ x }}',
    "( cd {{ x }}; ls ) | { grep {{ x }}; }",
    "{{ x | raw }}",
    "eval {{ x | raw }}",
    "# eval {{ x }}",
    "{{ x | raw }} {{ x }}",
    'y={{ x }}; ls "$y" ${y%a} "${y:-b}"; sh -c \'ls "$1"\' sh $y',
    "set -eu; git add . && git commit -m {{ x }}",
    "timeout 5m npm test -- {{ x }}",
    "timeout -s KILL 5 grep {{ x }} file",
    "sudo -u me cp {{ x }} /etc",
    "env -i A={{ x }} B=1 ./run {{ x }}",
    "nohup nice -n 5 ./run {{ x }} &",
    "git ls-files -z | xargs -0 -n 1 grep -n -e {{ x }}",
    "git ls-files | xargs -I{} cp {} {{ x }}",
    "git ls-files | xargs -I {} cp {} {}.{{ x }}",
    "find {{ x }} -name {{ x }} -exec grep -l {{ x }} {} +",
    'find ./{{ x }} -exec sh -c \'mv "$1" "$1.bak"\' sh {} \\;',
    "docker exec box sh -c 'ls \"$1\"' sh {{ x }}",
    "command -v {{ x }} > /dev/null",
    "ls \\\n  {{ x }} \\\n  && ls",
    "ls *.txt {a,b} ~/c {{ x }} # it's {{ x }}",
    "printf '%s\\n' {{ x }} | tr a b | tee -a out/{{ x }}.log",
]


@pytest.mark.parametrize("command", SAFE)
def test_a_place_that_can_be_protected_is_not_reported(command: str) -> None:
    assert errors(command) == []
    prepare(command, ["1"] * command.count("{{ x"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ('python3 -c"print({{ x }})"', "python3 reads the value as code"),
        ("python3 -c 'print({{ x }})'", "python3 reads the value as code"),
        ("uv run python -c '{{ x }}'", "python reads the value as code"),
        ('perl -e"print {{ x }}"', "perl reads the value as code"),
        ("perl -pe 's/{{ x }}//'", "perl reads the value as code"),
        ('node -e "{{ x }}"', "node reads the value as code"),
        ("echo {{ x }} | python3 -", "python3 reads its input as code"),
        ("awk -F: '/{{ x }}/' file", "awk reads the value as code"),
        ("sed 's/a/{{ x }}/' file", "sed reads the value as code"),
        ("sed -n -e p -e {{ x }} file", "sed reads the value as code"),
        ("make {{ x }}", "make reads the value as code"),
        ("make CC={{ x }}", "make reads the value as code"),
        ("git -c {{ x }} status", "git reads the value as code"),
        ("ssh -o {{ x }} host uptime", "ssh reads the value as code"),
        ("tar cf a.tar {{ x }}", "tar can take the value for an option"),
        ("sudo rm {{ x }}", "rm can take the value for an option"),
        ("GIT_SSH_COMMAND={{ x }} git fetch", "other programs run what is in GIT_SSH_COMMAND"),
        ("env PAGER={{ x }} man ls", "other programs run what is in PAGER"),
    ],
)
def test_what_another_program_may_read_as_code_gets_a_warning(command: str, why: str) -> None:
    [[finding]] = check(command)
    assert (finding.offset, finding.severity) == (command.index("{{"), "warning")
    assert finding.message.startswith(why)
    prepare(command, ["v"])


@pytest.mark.parametrize(
    "command",
    [
        "ls -- {{ x }}",
        "git diff --end-of-options {{ x }} --",
        "git commit -m {{ x }}",
        "grep -e {{ x }} file",
        "echo {{ x }}",
        "printf '%s' {{ x }}",
        "sleep {{ x }}",
        "ls ./{{ x }}",
        "ls --file={{ x }}",
        "wc -l < {{ x }}",
        "awk -v a={{ x }} '{print a}'",
        "jq --arg a {{ x }} '.b == $a' file",
        "GIT_AUTHOR_NAME={{ x }} git commit",
        "{{ x | raw }} {{ x }}",
    ],
)
def test_what_is_plainly_data_gets_no_warning(command: str) -> None:
    assert check(command) == [[]]


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
        [found] = check(command)
    except (TemplateError, ShellError):
        return
    assert all(command.startswith("{{", finding.offset) for finding in found)


def test_a_command_that_no_shell_could_be_given_is_an_error_at_once() -> None:
    with pytest.raises(ShellError, match="longer than 131 kB"):
        check("ls {{ x }} " + "a " * 70_000)
    with pytest.raises(ShellError, match="longer than 131 kB"):
        check("ls " + "{{x}}" * 70_000)


def test_nesting_without_end_is_an_error_not_a_crash() -> None:
    for command in ("$(" * 5000 + "{{ x }}", "( " * 5000 + "{{ x }}", "ls {{ x }}; " + "nice " * 20_000 + "ls"):
        [(_, why)] = errors(command)
        assert "nested" in why


def test_a_command_is_compiled_once_and_prepared_many_times() -> None:
    command = compile_command("ls {{ a }} {{ b | json }}", unevaluated)
    assert command.names == {"a", "b"}
    for value in ("x", "y"):
        prepared = command.prepare(lambda expression, value=value: value + expression.source)  # type: ignore[misc]
        assert list(prepared.values.values()) == [f"{value}a", f'"{value}b"']


def test_a_list_is_a_program_and_its_arguments_whatever_is_in_them() -> None:
    prepared = prepare(("printf", "%s", "{{ a }} $(b)", "{{ c | quote }}", "{{ d | raw }}"), ["$(x)", "a b", ";"])
    assert prepared.script.endswith(
        '; exec printf %s "${sidecar_value_1}"\' $(b)\' "${sidecar_value_2}" "${sidecar_value_3}"'
    )
    assert list(prepared.values.values()) == ["$(x)", "'a b'", ";"]
    assert "env printf" in prepared.standalone()


def test_each_element_of_a_list_is_one_argument() -> None:
    with pytest.raises(TemplateError, match="each element of a command is one argument"):
        prepare(("ls", "{{ x }}"), [["a", "b"]])
    with pytest.raises(TemplateError, match="has no value"):
        prepare(("ls", "{{ x }}"), [None])
    with pytest.raises(ShellError, match="cannot begin with -"):
        prepare(("{{ x }}", "ls"), ["-a"])


def test_a_list_that_starts_a_shell_gets_a_warning_and_no_refusal() -> None:
    findings = check(("sh", "-c", "ls {{ x }}", "{{ y }}"))
    assert [[finding.message for finding in each if finding.severity == "warning"] for each in findings] == [
        [],
        [],
        ["sh would read an expansion as its script; write sh -c '… \"$1\"' sh {{ … }}"],
        [],
    ]
    assert check(("ssh", "host", "ls {{ x | quote }}")) == [[], [], []]
    assert check(("ls", "--", "{{ x }}")) == [[], [], []]
