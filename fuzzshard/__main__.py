"""The program, ``fuzzshard`` or ``python -m fuzzshard``: the command line, once it is imported."""

from __future__ import annotations

import os
import signal

from fuzzshard.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line. SIGTERM, by which CI cancels a job, is an interrupt as Ctrl-C is.

    An interrupt while it is still being imported, which takes half a second, ends the process in
    the handler: classes that are being created turn ``KeyboardInterrupt`` into other exceptions.
    """
    heard = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _leave)
    from fuzzshard import cli

    for number in heard:
        signal.signal(number, signal.default_int_handler)
    try:
        cli.main()
    finally:  # what Python does at its exit prints a traceback of an interrupt
        for number in heard:
            signal.signal(number, _leave)


def _leave(*_: object) -> None:
    os.write(2, b"fuzzshard: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
