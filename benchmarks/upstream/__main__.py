"""``python -m upstream corpus/upstream``: writes the cases and their README."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzzshard.corpus.files import write_atomic
from upstream.catalog import case_files
from upstream.readme import readme


def write(corpus: Path) -> int:
    """Writes every case below ``corpus``, removes those that no table has, and returns how many
    there are.
    """
    files = {corpus / path: data for path, data in case_files()}
    for stale in set(corpus.rglob("*.json")) - set(files):
        stale.unlink()
    for path, data in files.items():
        if not path.exists() or path.read_bytes() != data:
            write_atomic(path, data)
    write_atomic(corpus / "README.md", readme(corpus).encode())
    return len(files)


def main(arguments: list[str]) -> int:
    """The command; one argument, the folder."""
    if len(arguments) != 1:
        print("usage: python -m upstream corpus/upstream", file=sys.stderr)
        return 2
    print(f"wrote {write(Path(arguments[0]))} cases")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
