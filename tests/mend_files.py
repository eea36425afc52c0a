"""Files of mends for tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

HEAD = '''\
"""A bug that a test has made up."""

from fuzzshard.mending import Edit, Promise, Public, Releases, trip

TITLE = "What a test has made up"
COMPONENT = "{component}"
WEIGHT = "bug"
CONTRACT = Promise("words", "place")
TORCH = Releases()
'''


def mend_file(folder: Path, slug: str, body: str, *, component: str = "fully_shard") -> Path:
    """A mend in a file of its own: what every one says, and ``body``."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{slug}.py"
    file.write_text(HEAD.format(component=component) + textwrap.dedent(body))
    return file
