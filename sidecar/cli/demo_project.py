"""The project of `sidecar demo`: three workflows, and two programs that stand in for coding agents."""

from __future__ import annotations

import json
import os
import sys

from sidecar import layout

WORKSPACE = "my-task"
_CONFIG = """\
kill_after_s: 2         # a deaf agent is to be dead soon
workspaces_dir: .swissarmyhammer/workspaces
"""
_WORKER = """\
# Reads its task, works for a second, and says what it did.
import sys, time
task = sys.stdin.read().strip()
time.sleep(1)
with open("work.log", "a") as log:
    print(task, file=log)
print("did", task)
"""
_DEAF = """\
# Ignores every request to end. So does its child, which has moved to a session of its own.
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setsid()
else:
    print(f"pid {os.getpid()} and its child {child} do not listen to SIGTERM", flush=True)
while True:
    time.sleep(60)
"""
_LOOP = """\
name: loop
description: Four pieces of work, one after the other.
default_state:
  raw: {done: 0}
state_schema:
  raw: {done: integer}
steps:
  - id: loop
    type: while
    condition: "{{ done < 4 }}"
    max_iterations: 4
    body:
      - id: work
        type: agent
        agent: worker
        prompt: piece {{ done + 1 }}
      - id: count
        type: state_update
        path: raw.done
        operation: increment
"""
_SURVEY = """\
name: survey
description: Six tasks, three at a time, and sums that follow them.
default_state:
  raw: {trees: {}}
state_schema:
  raw: {trees: object}
  computed:               # these follow raw.trees by themselves
    measured:
      from: raw.trees
      transform: Object.keys(input).length
    tallest:
      from: raw.trees
      transform: Object.keys(input).sort((a, b) => input[b] - input[a])[0] ?? "none"
steps:
  - id: survey
    type: parallel_foreach
    items: '{{ ["fir", "ash", "alder", "larch", "linden", "sequoia"] }}'
    max_parallel: 3
    sub_agent_task: measure
  - id: result
    type: user_message
    message: "all {{ measured }} are measured, the tallest is the {{ tallest }}"
sub_agent_tasks:
  measure:
    steps:
      - id: measure
        type: shell_command
        command: sleep 1; printf %s {{ item }} | wc -c
        output_format: json
        state_update: {path: "raw.trees.{{ item }}"}
      - id: tell
        type: user_message
        message: "{{ measured }} measured, the tallest by now is the {{ tallest }}"
"""
_STUBBORN = """\
name: stubborn
description: An agent that ignores every request to end.
steps:
  - id: work
    type: agent
    agent: deaf
    prompt: never end
"""


def make(root: str) -> None:
    """Write all of it into an empty directory."""
    state = layout.STATE_DIRECTORY
    for path, content in {
        "worker.py": _WORKER,
        "deaf.py": _DEAF,
        f"{state}/config.yaml": _CONFIG,
        f"{state}/agents/worker.yaml": _agent("Stands in for a coding agent.", "worker.py"),
        f"{state}/agents/deaf.yaml": _agent("Stands in for one that hangs.", "deaf.py"),
        f"{state}/workflows/loop.yaml": _LOOP,
        f"{state}/workflows/survey.yaml": _SURVEY,
        f"{state}/workflows/stubborn.yaml": _STUBBORN,
        f"{state}/workspaces/{WORKSPACE}/INSTRUCTIONS.md": "Nothing but a demonstration.\n",
    }.items():
        target = os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(content)


def _agent(description: str, program: str) -> str:
    """An agent's file; JSON is YAML, and quotes whatever path the interpreter has."""
    command = [sys.executable, "-I", program]
    return json.dumps({"description": description, "adapter": "command", "command": command, "prompt_via": "stdin"})
