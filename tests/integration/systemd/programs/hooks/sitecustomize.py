"""Ways for a daemon to hang that only a test wants: imported by Python itself where PYTHONPATH leads here."""

import signal
import sys
import time


def _hang(*_: object) -> None:
    """The event loop stands still: signal handlers run on it."""
    time.sleep(3600)


def _doze(*_: object) -> None:
    """The loop goes on, and the watcher of signal files does not."""
    import anyio

    from sidecar.signals.watch import Watcher

    async def never(_: Watcher) -> None:
        await anyio.sleep_forever()

    setattr(Watcher, "_tick", never)  # noqa: B010 - a type checker is right to refuse the other form


if "daemon" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, _hang)
    signal.signal(signal.SIGUSR2, _doze)
