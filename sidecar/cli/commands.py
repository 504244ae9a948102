"""The commands there are, and what each is for; nothing is imported here, so that shell completion can read it too."""

from __future__ import annotations

# What each command is for; the module of the same name in this package has it. `stop` and `abort` never come this
# way: sidecar.__main__ sends them to stop_abort.
COMMANDS = {
    "init": "make a first workflow, workspace and settings here",
    "stop": "let the current iteration finish, then end the run",
    "abort": "end runs now, with every agent and command",
    "flow": "list workflows, or run one: sidecar flow run NAME",
    "status": "the runs of the project, or everything about one",
    "logs": "what happened in a run, also as it happens",
    "resume": "go on with a run that was stopped, or failed, or died",
    "answer": "answer the question that a run waits for",
    "redirect": "say something to the agents of a live run",
    "workspace": "make, list, show and clean the directories that iteration loops work in",
    "prompt": "list prompts, show one, or give it to an agent: sidecar prompt run NAME",
    "agent": "list agents, or run one: sidecar agent run claude 'fix the build'",
    "validate": "check workflows: every problem at once, with its place",
    "schema": "the JSON Schema of workflow files, for editors",
    "graph": "a picture of a workflow's steps and data",
    "daemon": "the long-lived owner of detached runs, and the MCP server of a project",
    "serve": "MCP on standard input and output",
    "service": "have systemd or launchd keep the daemon running: sidecar service install",
    "mcp": "register sidecar with an MCP client: sidecar mcp install claude",
    "demo": "see it work: a loop that is stopped, resumed and aborted, in a project of its own",
    "config": "the settings that hold here, and where each comes from",
    "completion": "a script that lets bash, zsh or fish complete sidecar's words",
    "doctor": "what is in force here, what is wrong, and what to do about it",
    "support-bundle": "what a bug report needs, in one file, without secrets",
}
HIDDEN = ("own", "__complete")  # for ourselves
TAKEN = (*COMMANDS, *HIDDEN)  # names that no shortcut can have
