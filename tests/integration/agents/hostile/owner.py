"""An owner that starts every hostile program and waits to be killed: `owner.py CONTAINMENT WORD KIT NAME...`.

It prints the sentinel's pid and each agent's record, then `ready`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import cast

import anyio

from sidecar.agents.containment import Setting
from sidecar.agents.supervisor import Launch, Supervisor


async def main(containment: Setting, word: str, kit: str, names: list[str]) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        records = []
        for name in names:
            argv = [sys.executable, "-I", "-S", kit, name, word]
            agent = await supervisor.start(Launch(argv=argv, cwd="/", kill_after_s=600))
            async for output in agent.pipes.subscribe():
                if "ready" in output.lines:
                    break
            records.append(asdict(agent.record))
        sys.stdout.write(json.dumps({"sentinel": supervisor.sentinel_pid, "records": records}) + "\nready\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


anyio.run(main, cast("Setting", sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
