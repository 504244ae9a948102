"""Hostile values in commands that real shells run: nothing of them is executed, and they arrive unchanged.

What is refused is looked at too: that it would really run the value, and that nothing like it is accepted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import ShellError, TemplateError
from sidecar.state.script import Expression
from sidecar.state.shell import compile_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sidecar.state.shell import PreparedCommand

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


def unevaluated(source: str) -> Expression:
    """An expression that nothing evaluates."""
    return Expression(source, (source,), (), "", 0)


def prepare(command: str | tuple[str, ...], values: Sequence[Any]) -> PreparedCommand:
    return compile_command(command, unevaluated).fill(values)


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
    Spot('P "$(printf %s "$(printf %s "$(printf %s {{ x }})")")"', stripped),
    Spot('y={{ x }}; P "${y:-none}" "${y}"', lambda value: [value or "none", value]),
    Spot("for y in {{ x }} '{{ x }}'; do P \"$y\"; done", lambda value: [value, value]),
    Spot("if test {{ x }} = '{{ x }}'; then P yes; else P no; fi", lambda value: ["yes"]),
    Spot("[ 'a{{ x }}' != \"b{{ x }}\" ] && P {{ x }}; P '{{ x }}'", lambda value: [value, value]),
    Spot("P a # it's {{ x }}\nP {{ x }}", lambda value: ["a", value]),
    Spot('sh -c \'printf "%s\\0" "$1"\' sh {{ x }}', alone),
    Spot("P {{ x | quote }}", alone),
    Spot("command P {{ x }} && env A={{ x }} P \\\n  '{{ x }}'", lambda value: [value, value]),
    Spot("( { P {{ x }}; } ) && if true; then P '{{ x }}'; fi", lambda value: [value, value]),
]


def arguments(prepared: PreparedCommand, shell: str, directory: Path, locale: str = "C.UTF-8") -> list[str]:
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


def check(spot: Spot, shell: str, program: str, directory: Path) -> None:
    """One shell for all the short values, one after the other, and one for the value that fills a variable."""
    command = spot.command.replace("P ", program + " ")
    holes = command.count("{{ x")
    prepared = prepare("\n".join([command] * len(HOSTILE)), [value for value in HOSTILE for _ in range(holes)])
    assert arguments(prepared, shell, directory) == [each for value in HOSTILE for each in spot.arguments(value)]
    # Not for repetitions: a program's argument is limited to 128 KiB too.
    if all(len(each) <= len(LONG) + 20 for each in spot.arguments(LONG)) and holes < 4:
        assert arguments(prepare(command, [LONG] * holes), shell, directory) == spot.arguments(LONG)


VALUES = st.text(
    alphabet=st.sampled_from("'\"`$(){}[]|&;<>\\#\n\r\t !*?~-=%^,.ab1éÁ漢😀\x01\x7f\udc80\udc81\udcff")
    | st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    max_size=40,
)


WRAPS: list[Callable[[str], str]] = [
    lambda command: f'printf %s "$({command}\n)"',
    lambda command: f'y=$({command}\n); printf %s "$y"',
    lambda command: f"for y in 1; do {command}\ndone",
    lambda command: f"if true; then {command}\nfi # it's",
    lambda command: f" ( {command}\n)",
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
def test_the_elements_of_a_list_are_arguments_and_nothing_else(shell: str, tmp_path: Path) -> None:
    prepared = prepare(("printf", "%s\\0", "a $(touch pwned) *", *["-{{ x }}"] * len(HOSTILE)), HOSTILE)
    expected = ["a $(touch pwned) *", *(f"-{value}" for value in HOSTILE)]
    assert arguments(prepared, shell, tmp_path) == expected
    text = type(prepared)(prepared.standalone(), {}, prepared.body, prepared.values)
    assert arguments(text, shell, tmp_path) == expected


ARITHMETIC = "a[$(mkdir pwned)]"


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on this machine")
@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("echo $(( {{ x }} ))", ARITHMETIC),
        ("[[ {{ x }} -eq 0 ]]", ARITHMETIC),
        ("a=(1); unset {{ x }}", ARITHMETIC),
        ("declare -i n={{ x }}", ARITHMETIC),
        ("a=(1); echo ${a:{{ x }}}", ARITHMETIC),
        ("a[{{ x }}]=1", ARITHMETIC),
        ("i={{ x }}; arr[i]=1", ARITHMETIC),
        ("i={{ x }}; read 'arr[i]' < /dev/null", ARITHMETIC),
        ("[ -v {{ x }} ]", ARITHMETIC),
        ("i={{ x }}; [ -v 'arr[i]' ]", ARITHMETIC),
        ('set -- -v {{ x }}; [ "$@" ]', ARITHMETIC),
        ("printf -v {{ x }} 1", ARITHMETIC),
        ("printf {{ x }} 1", f"-v{ARITHMETIC}"),
        ("read {{ x }} < /dev/null", ARITHMETIC),
        ("RANDOM={{ x }}", ARITHMETIC),
        ("PS4={{ x }}; set -x; true", ARITHMETIC),
        ("env BASH_ENV={{ x }} bash /dev/null", ARITHMETIC),
        ("env {{ x }} bash /dev/null", f"BASH_ENV={ARITHMETIC}"),
        ("eval echo {{ x }}", ARITHMETIC),
        ("{eval,echo} {{ x }}", ARITHMETIC),
        ("/bin/s[h] -c {{ x }}", "mkdir pwned"),
        ("sh -c 'echo '{{ x }}", ARITHMETIC),
        ("S=sh; $S -c {{ x }}", "mkdir pwned"),
        ("c=-c; sh $c {{ x }}", "mkdir pwned"),
        ("sh -c 'eval \"$1\"' sh {{ x }}", "mkdir pwned"),
        ("export CMD={{ x }}; sh -c 'eval \"$CMD\"'", "mkdir pwned"),
        ("trap 'echo '{{ x }} EXIT", ARITHMETIC),
        ("echo >& {{ x }}", ARITHMETIC),
        ("y={{ x }}; echo $((y))", ARITHMETIC),
        ("y={{ x }}; [[ $y -eq 0 ]]", ARITHMETIC),
        ("y={{ x }}; echo ${!y}", ARITHMETIC),
        ("[[ $(echo {{ x }}) -eq 0 ]]", ARITHMETIC),
        ("a[$(echo {{ x }})]=1", ARITHMETIC),
        ("f() { eval $1; }; f {{ x }}", ARITHMETIC),
        ("echo {{ x }} | sh", ARITHMETIC),
        (". /dev/stdin <<< {{ x }}", "mkdir pwned"),
        ("echo {{ x }} | sh /dev/stdin", "mkdir pwned"),
        ("printf '%s\\0' {{ x }} | xargs -0 -n1 sh -c", "mkdir pwned"),
        ("echo {{ x }} | xargs env", "mkdir pwned"),
        ("echo {{ x }} | xargs timeout 5", "mkdir pwned"),
        ("echo {{ x }} | xargs -I% sh -c 'echo %'", "$(mkdir pwned)"),
        ("timeout 5 {{ x }}", "./evil"),
        ("find . -maxdepth 0 -exec {{ x }} \\;", "./evil"),
        ("y={{ x }}; [ $y = 1 ]", "-v a[$(mkdir${IFS}pwned)] -o 1"),
        ("y={{ x }}; env A=$y true", "1 mkdir pwned"),
        (f"i='{ARITHMETIC}'; [ {{{{ x }}}} 'arr[i]' ]", "-v"),
        ("find . -maxdepth 0 {{ x }} $(echo ./evil) \\;", "-exec"),
        ('set -- ./evil; find . -maxdepth 0 {{ x }} "$1" \\;', "-exec"),
        ("echo {{ x }} | find . -maxdepth 0 -exec sh \\;", "mkdir pwned"),
        ("echo {{ x }} | xargs xargs", "mkdir pwned"),
        ("echo {{ x }} | xargs --repl=% sh -c 'echo %'", "$(mkdir pwned)"),
        ("echo {{ x }} | xargs -ti sh -c 'echo {}'", "$(mkdir pwned)"),
        ("export OLDPWD; echo {{ x }} | (cd /dev; sh stdin)", 'mkdir "$OLDPWD/pwned"'),
        ("case b in\n(b) {{ x }} | cat ;;\nesac", "./evil"),
        ("case b in a) ;; (b) {{ x }} | cat ;; esac", "./evil"),
        ("\\case b | {{ x }} | cat", "./evil"),
        ("'if' case b | {{ x }} | cat", "./evil"),
        ("< /dev/null case b | {{ x }} | cat", "./evil"),
        ("i={{ x }}; echo {arr[i]}> /dev/null", ARITHMETIC),
        ("SRANDOM={{ x }}", ARITHMETIC),
        ("HISTCMD={{ x }}", ARITHMETIC),
        ("for SECONDS in {{ x }}; do :; done", ARITHMETIC),
        ("BASHPID+={{ x }}", ARITHMETIC),
    ],
)
def test_what_is_refused_would_really_run_the_value_even_from_a_variable(
    command: str, value: str, tmp_path: Path
) -> None:
    bait(tmp_path)
    by_hand = command.replace("{{ x }}", '"$v"')
    environment = {**os.environ, "v": value}
    subprocess.run(["bash", "-c", by_hand], env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert "pwned" in os.listdir(tmp_path)
    with pytest.raises(TemplateError, match="`env:`"):
        prepare(command, [value])


@pytest.mark.parametrize(
    "command", ["y={{ x }}", "ls; > {{ x }}", "[ {{ x }} = 1 ]", "find . {{ x }}", "timeout {{ x }}"]
)
def test_a_list_cannot_bring_a_command_with_it(command: str) -> None:
    for value in LISTS:
        with pytest.raises(TemplateError):
            prepare(command, [value])


def bait(directory: Path) -> None:
    for name, text in (("evil", "mkdir pwned"), ("script", ""), ("start", '"$@"')):
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)


def run(shell: str, script: str, environment: dict[str, str], directory: Path) -> bool:
    """Whether the script left a directory behind: files can have any name that a value gives them.

    Nothing that it started goes on afterwards, and none of it gets more than some seconds of CPU.
    """
    bait(directory)
    process = subprocess.Popen(
        ["sh", "-c", 'ulimit -t 20; exec "$@"', "sh", shell, "-c", script],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return (directory / "pwned").is_dir()


def together(commands: Sequence[PreparedCommand]) -> str:
    """One script that runs them all, each in a process of its own: starting a shell for each takes most of the time."""
    lines = []
    for prepared in commands:
        values = " ".join(f"{name}={shlex.quote(value)}" for name, value in prepared.environment.items())
        lines.append(f"( export {values}; eval {shlex.quote(prepared.script)} )\n")
    return "".join(lines)


def table(text: str) -> list[str]:
    """Its entries, with two blanks between them."""
    return re.split(r"\n {4}| {2}", text.strip())


# As many ways as there are to lead a value to a place, and places where it may be code: in `V` it stands as a word.
CARRIERS = [
    ("direct", "C", "{{ x }}"),
    ("quoted", "C", '"{{ x }}"'),
    ("variable", "y={{ x }}; C", '"$y"'),
    ("unquoted", "y={{ x }}; C", "$y"),
    ("positional", "set -- {{ x }}; C", '"$1"'),
    ("all", "set -- {{ x }}; C", '"$@"'),
    ("function", "f() { C; }; f {{ x }}", '"$1"'),
    ("loop", "for y in {{ x }}; do C; done", '"$y"'),
    ("read", "echo {{ x }} | while read -r y; do C; done", "$y"),
    ("output", "C", '"$(printf %s {{ x }})"'),
    ("split output", "C", "$(printf %s {{ x }})"),
    ("default", "y={{ x }}; C", '"${z:-$y}"'),
    ("exported", "export y={{ x }}; sh -c 'C'", '"$y"'),
    ("argument", "sh -c 'C' sh {{ x }}", '"$1"'),
]
CONSUMERS = table(
    """
    V  f () { V; }; f  echo "$\\\n(V)"
    V a  A=1 V  ! V  if V; then :; fi  { V; }  (V)  time V  exec V  command V  env V  env A=1 V  nohup V  nice V
    nice -n 5 V  timeout 5 V  timeout -s KILL 5 V  setsid V  stdbuf -oL V  xargs V  find . -maxdepth 0 -exec V \\;
    find . -maxdepth 0 -exec echo V \\;  find . -maxdepth 0 V -exec echo {} \\;  eval V  eval echo V  . V  sh -c V
    sh -c -- V  bash -c V  sh -ec V  sh V  sh -s V  S=sh; $S -c V  sh $c V  bash -c "echo V"  env sh -c V
    nice sh -c V  echo V | sh  echo V | sh -s  echo V | bash -  echo V | sh /dev/stdin  echo V | xargs sh -c
    echo V | xargs env  echo V | xargs -I% sh -c "echo %"  echo V | xargs -I% %  echo V | xargs  echo V | xargs echo
    echo V | { sh; }  trap V EXIT  alias e=V\ne  echo $((V))  let V  ((V))  a[V]=1  i=V; a[i]=1  i=V; echo $((i))
    echo ${a[V]}  [[ V -eq 1 ]]  declare V  declare -i n=V  export V  export A=V  readonly B=V  local V  unset V
    read V < /dev/null  printf V  printf V a  printf V V  printf -v V a  printf %s V  printf %d V  test V  test V V
    [ V ]  [ -v V ]  [ V = 1 ]  [ -n V ]  [ 1 -eq V ]  [ V -a V ]  [ V -o V = V ]  [ ! V V ]  case V in V) ;; esac
    PS4=V; set -x; true  RANDOM=V  OPTIND=V; getopts a b  BASH_ENV=V bash -c true  ENV=V sh -c true  IFS=V  > V
    < V cat  cat < V  echo a > V  echo a >> V  echo a >& V  cat <& V  cat <<< V  cat << V\nV\nV  echo V  echo V V
    echo V.a  echo V # V  echo 'V'  ls V  ls -- V  cat V  cd V  exit V  shift V  return V  umask V  wait V  type V
    command -v V  hash V  ulimit -n V  set V  set -- V  sh ./script V  ./script V  sort V  sed V  tee V < /dev/null
    sh -c 'echo "$1"' sh V  env A=V ./script  echo ~V  echo {V,a}  echo $V  echo ${V}  echo ${!V}  y=V; echo ${!y}
    y=V; echo ${y@P}  echo \\V  `V`  echo `V`  echo $(V)  cat <(V)  a=(V)  a=([V]=1)  coproc V
    select i in V; do :; done  mapfile V < script  time if V; then :; fi  time -p V  time ! V  exec -a V true
    exec -a a V  command -p V  builtin V  builtin printf -v V a  env -S V  env -u V true  env -C V true
    nice -n V true  timeout V true  timeout -s V 5 true  timeout --signal=KILL 5 V  stdbuf -o V true
    xargs -n V echo < script  xargs -d V echo < script  xargs -a script V  xargs -I V sh -c "echo a" < script
    xargs -I{} V < script  echo V | xargs -0 -n1 sh -c  echo V | xargs xargs  echo V | xargs nice
    echo V | xargs -I sh sh -c ./evil  echo V | xargs find . -maxdepth 0 -exec
    echo V | find . -maxdepth 0 -exec sh \\;  find V -maxdepth 0 -exec sh -c "echo {}" \\;
    find V -maxdepth 0 -exec {} \\;  find V V  find . -maxdepth 0 -okdir sh -c V \\;
    find . -maxdepth 0 -exec timeout 5 V \\;  echo V | (sh)  echo V | while :; do sh; break; done  echo V | sh -c sh
    echo V | bash script  echo V | sh -c ". /dev/stdin"  echo V | sh ./stdin  echo V | cat - | sh  echo V > >(sh)
    echo V | tee >(sh)  sh <<< V  . /dev/stdin <<< V  . <(echo V)  bash <(echo V)  exec 3<<< V; sh <&3  sh < V
    sh -c +e V  sh -c -e V  sh - V  sh -o errexit -c V  sh -$? V  bash --rcfile V -i -c true  bash -O V script
    bash -ic V  \\sh -c V  s''h -c V  /bin/s? -c V  {sh,x} -c V  ${S:-sh} -c V  $nothing V  e$nothing"val" V  ev\nal V
    ev\\\nal V  ./start eval V  ./start sh -c V  ./start bash -c "echo V"  ./start sh V  echo V | ./start sh
    test -v V  [ -R V ]
    [ ! -v V ]  [ a -o -v V ]  [ V 'a[i]' ]  i=V; [ V 'a[i]' ]  i=V; test -v 'a[i]'  i=V; unset 'a[i]'
    i=V; read 'a[i]' < script  i=V; printf -v 'a[i]' b  i=V; export 'a[i]=1'  i=V; getopts a 'b[i]' -a
    i=V; exec {a[i]}> /dev/null  i=V; sleep 0 & wait -n -p 'a[i]'  i=V; echo ${a[i]}  i=V; echo ${a:i}
    a=abc; echo ${a:V}  y=V; echo ${y@E}  y=V; echo ${y@A}  declare -n r=V; echo $r  for ((i=V; i<1; i++)); do :; done
    [[ -v V ]]  [[ a == b || 1 -lt V ]]  echo $[V]  a["V"]=1  export a[V]=1
    shopt -s expand_aliases; BASH_ALIASES[e]=V\ne  BASH_CMDS[e]=V; e  hash -p V e; e  PS4=V bash -xc true
    read PS4 <<< V; set -x; true  : ${PS4:=V}; set -x; true  export BASH_''ENV=V; bash ./script
    set -k; bash ./script BASH_ENV=V  set -a; BASH_ENV=V; bash ./script  PROMPT_COMMAND=V bash -i < /dev/null
    MAILPATH=V  LINENO=V  env 'BASH_FUNC_echo%%=() { V; }' bash -c echo  compgen -C V  complete -W V e
    mapfile -C V -c 1 y < script  jobs -x V  enable -f V e  history -s V  trap - V  kill -0 V  f() { V; }; f
    function f { eval V; }; f  echo() { eval "$1"; }\necho V  case V in *) V;; esac  case V in a) ;; esac
    echo ${y:-V}  echo "${y:-'V'}"  echo ${y/V/a}  echo ${y@V}  echo $'V'  echo $"V"  echo "`echo V`"
    echo "$(echo # )\nV)"  echo "$( (V) )"  echo $((echo V); echo)  echo a \\\n V  echo a # \\\nV  eval\rV   eval V
    if! V  cat <<-E\n\tV\n\tE  cat << 'E'\nV\nE  cat <<E; V\nE  rec {fd}> V  echo a &> V  echo a >| V  echo a <> V
    exec 3> V  V && V || V  echo V;V  ! ! V  a-b=V true  a\\[0]=V  GIT_EDITOR=V true  PATH=V:$PATH true
    """
)
VALUES_AS_CODE = [
    "mkdir pwned",
    "1 ./evil",
    "$(mkdir pwned)",
    "; mkdir pwned;",
    "\nmkdir pwned\n",
    "'; mkdir pwned; '",
    ARITHMETIC,
    f"-v{ARITHMETIC}",
    "-v a[$(mkdir${IFS}pwned)] -o 1",
    "-cmkdir pwned",
    "BASH_ENV=$(mkdir pwned)",
    "./evil",
]
LISTS: list[list[str]] = [
    ["touch", "pwned"],
    ["-c", "mkdir pwned"],
    ["-v", ARITHMETIC, "-o", "1"],
    ["a", "./evil"],
    ["1", "./evil"],
    [";", "-exec", "./evil", ";"],
]


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_however_a_value_gets_to_a_place_it_is_refused_or_harmless(consumer: str, tmp_path: Path) -> None:
    accepted: list[tuple[str, Any, PreparedCommand]] = []
    for _, around, word in CARRIERS:
        command = around.replace("C", re.sub(r"\bV\b", lambda _, word=word: word, consumer))  # type: ignore[misc]
        for value in (*VALUES_AS_CODE, *LISTS):
            with contextlib.suppress(TemplateError):
                accepted.append((command, value, prepare(command, [value] * command.count("{{ x }}"))))
    for shell in SHELLS[:2]:
        if run(shell, together([prepared for _, _, prepared in accepted]), {}, tmp_path):
            os.rmdir(tmp_path / "pwned")
            for command, value, prepared in accepted:
                assert not run(shell, prepared.script, prepared.environment, tmp_path), (shell, command, value)
            pytest.fail(f"one of them runs a value, but not alone: {consumer}")


# No function is called and no loop goes on for ever: one that calls itself, with a `|` or a `&`, is a fork bomb.
COMMANDS = table(
    """
    echo  printf  printf '%s'  test  [  cat  env  env -i  xargs  xargs -0  xargs -I%  timeout 5  nice -n 5  nohup
    exec  command  builtin  find .  find . -exec  find . -exec echo  sh  bash  sh -c  bash -c  sh -c 'echo "$1"' sh
    sh ./script  eval  .  trap  export  local  readonly  unset  read  declare  let  set --  set  cd  :  for i in
    for i  case a in  [[  ((  y=  y={{ x }}  z=$y  a[1]=  a[y]=1  PS4=  RANDOM=  $y  {{ x }}  "$y"  if  then  fi  do
    done  {  }  !  time  esac  wait  alias e=eval;  e  exit  f()  f() {  command -v  ./script  sed p  export y;
    set -x;  set -a;  IFS=:;  shopt -s expand_aliases extglob;  sudo  stdbuf -oL  time  time -p  bash -eo pipefail -c
    set -k;  getopts ab y  [ !  test a =
    """
)
WORDS = table(
    """
    {{ x }}  "{{ x }}"  '{{ x }}'  a{{ x }}  {{ x }}b  "$y"  $y  $1  "$@"  ${y}  "${y:-b}"  %  {}  $(echo {{ x }})
    "$(echo "{{ x }}")"  `echo {{ x }}`  $'{{ x }}'  -{{ x }}  $((y))  y={{ x }}  {a,{{ x }}}  \\{{ x }}  [{{ x }}]  a
    5  -n  -I%  -c  -s  --  sh  '$1'  -v  =  -eq  -o  ]  -exec  \\;  > {{ x }}  < {{ x }}  >& {{ x }}  2>&1
    <<< {{ x }}  <<E\n{{ x }}\nE\n  <(echo {{ x }})  # {{ x }}\n  $?  $!  "$*"  !  'a[i]'  script  time  in  -R
    """
)
JOINTS = [
    "; ",
    "\n",
    " && ",
    " | ",
    " & ",
    ";; ",
    "; done\n",
    "; }\n",
    "; fi\n",
    " ) ",
    " ( ",
    "; then ",
    "; do ",
    " \\\n ",
    ") ",
]
AROUND = [
    "C",
    'echo "$(C)"',
    "( C )",
    "for y in {{ x }}; do C; done",
    "echo {{ x }} | while read y; do C; done",
    "set -- {{ x }}; C",
    "y={{ x }}; C",
    "printf '%s\\0' {{ x }} | C",
    "export y={{ x }}; C",
    "if test a{{ x }}; then C; fi",
]
MISTAKES = ["", "", "", "", "'", '"', "`", "\\", "$", "${y", "$(", ")", "}", "((", "[[ ", "#", "\\\n", "{", "<("]


@settings(max_examples=500, derandomize=True)
@given(
    simple=st.lists(
        st.tuples(st.sampled_from(COMMANDS), st.lists(st.sampled_from(WORDS), max_size=4)), min_size=1, max_size=3
    ),
    joints=st.tuples(st.sampled_from(JOINTS), st.sampled_from(JOINTS)),
    around=st.tuples(st.sampled_from(AROUND), st.sampled_from(AROUND)),
    mistake=st.tuples(st.sampled_from(MISTAKES), st.integers(0, 60)),
    data=st.data(),
)
def test_a_value_is_refused_or_harmless_whatever_the_command_looks_like(
    simple: list[tuple[str, list[str]]],
    joints: tuple[str, str],
    around: tuple[str, str],
    mistake: tuple[str, int],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    commands = [" ".join([name, *words]) for name, words in simple]
    command = "".join(part for pair in zip(commands, (*joints, ""), strict=False) for part in pair)
    for outer in around:
        command = outer.replace("C", command)
    command = command[: mistake[1]] + mistake[0] + command[mistake[1] :]
    try:
        count = len(compile_command(command, unevaluated).slots)
        values = data.draw(st.lists(st.sampled_from([*VALUES_AS_CODE, *LISTS]), min_size=count, max_size=count))
        prepared = prepare(command, values)
    except (TemplateError, ShellError):
        return
    directory = tmp_path_factory.mktemp("any")
    for shell in SHELLS[:2]:
        assert not run(shell, prepared.script, prepared.environment, directory)
