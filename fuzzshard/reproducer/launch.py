"""Runs a script with files preloaded: ``-m fuzzshard.reproducer.launch --preload FILE ... --
repro.py``.

Every file is imported and its ``apply()`` called, if it has one; then the script runs as
``__main__``.
"""

from __future__ import annotations

import argparse
import runpy


def main() -> None:
    """Preloads, then runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("script")
    arguments = parser.parse_args()
    for path in arguments.preload:
        if apply := runpy.run_path(path).get("apply"):
            apply()
    runpy.run_path(arguments.script, run_name="__main__")


if __name__ == "__main__":
    main()
