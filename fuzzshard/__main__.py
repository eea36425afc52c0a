"""The program, ``fuzzshard`` or ``python -m fuzzshard``: the command line, once it is imported."""

from __future__ import annotations

import os
import signal

from fuzzshard.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line.

    An interrupt while it is still being imported, which takes half a second, ends the process in
    the handler: classes that are being created turn ``KeyboardInterrupt`` into other exceptions.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # where it is ignored, it stays so
        signal.signal(signal.SIGINT, _leave)
    from fuzzshard import cli

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _leave(*_: object) -> None:
    os.write(2, b"fuzzshard: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
