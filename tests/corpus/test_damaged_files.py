"""A file that something has changed is refused in one line, or says what it says: never a
traceback.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzzshard.case import codec
from fuzzshard.corpus.codec import decode_entry, encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import entry_files
from fuzzshard.errors import InvalidEntry

CORPUS = Path(__file__).parents[2] / "corpus"
SEED = 20
PATH = Path("case.json")
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**64, -(2**63), 10**30, 0.0, -0.5, 1e308, 1e-320),
    *(
        "",
        "x",
        "a.b",
        "..",
        "\0",
        "é",
        "forward",
        "2.13",
        "root",
        "linear0",
        "h0",
        "h0.0",
        [],
        {},
        [0],
        {"a": 1},
    ),
]


def sources() -> list[Path]:
    """Every finding and a few upstream cases, large and small."""
    return [
        *entry_files([CORPUS / "findings", CORPUS / "regressions"]),
        *entry_files([CORPUS / "upstream"])[::20],
    ]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in items:
        yield (*path, key)
        yield from paths(child, (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def flip(data: bytes, rng: random.Random) -> bytes:
    """One to four bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def edit(data: bytes, rng: random.Random) -> bytes:
    """One to three values replaced, copied from elsewhere, removed or scaled."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(paths(document))
        if not places:
            break
        *above, key = rng.choice(places)
        parent, value = at(document, tuple(above)), at(document, (*above, key))
        match rng.randrange(4):
            case 0:
                parent[key] = rng.choice(VALUES)
            case 1:
                del parent[key]
            case 2:
                parent[key] = json.loads(json.dumps(at(document, rng.choice(places))))
            case _ if isinstance(value, int | float):
                parent[key] = value * rng.choice((-1, 2, 10**6)) + rng.choice((0, 1))
            case _:
                parent[key] = rng.choice(VALUES)
    return json.dumps(document).encode()


def loaded(data: bytes) -> CorpusEntry | None:
    """The entry in ``data``; None where it is refused in one line."""
    try:
        return decode_entry(data, PATH)
    except InvalidEntry as error:
        refusal = str(error)
    assert "\n" not in refusal
    return None


def damage(count: int) -> None:
    rng = random.Random(SEED)
    originals = [read_entry(file) for file in sources()]
    for index in range(count):
        original = rng.choice(originals)
        saved, bare = encode_entry(original), codec.encode(original.case)
        change = rng.choice((flip, edit))
        damaged = change(saved, rng)
        entry = loaded(damaged)
        if entry is not None and entry != original:
            # whoever removes the checksum says that the change is meant
            assert "checksum" not in json.loads(damaged), (
                f"damage {index} of seed {SEED} went unseen"
            )
        for kept in filter(None, (entry, loaded(change(bare, rng)))):
            assert decode_entry(encode_entry(kept), PATH) == kept, f"damage {index} of seed {SEED}"


def test_damaged_files_are_refused_in_one_line_or_load_equal() -> None:
    damage(600)
