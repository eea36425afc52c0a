"""What a mend is: a known bug of torch, as the smallest change of torch that makes its behaviour
right.

A mend is a Python file: its docstring is the diagnosis, its names are those of :class:`Mend` in
capitals. It imports torch in functions only, for the coordinator reads it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

from fuzzshard.contracts import Releases
from fuzzshard.errors import UsageError

Component = Literal[
    "fully_shard", "FSDP1", "DDP", "replicate", "DTensor", "checkpoint", "compile", "other"
]
COMPONENTS: tuple[Component, ...] = (
    "fully_shard",
    "FSDP1",
    "DDP",
    "replicate",
    "DTensor",
    "checkpoint",
    "compile",
    "other",
)


Weight = Literal["bug", "exotic", "limitation"]
WEIGHTS: tuple[Weight, ...] = ("bug", "exotic", "limitation")

ALL_RELEASES = Releases()
OWN = Path(__file__).parents[1] / "mends"
"""Where the mends that fuzzshard has are."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """What torch says and does not keep: its words, and the docstring, note or file that has
    them.
    """

    quote: str
    source: str

    def text(self) -> str:
        """Return the words in quotes, and where they are."""
        return f'"{self.quote}" ({self.source})'


@dataclasses.dataclass(frozen=True)
class Public:
    """One look for the bug in public: an issue or pull request ``link``, empty where none was
    found.

    ``says`` is what became of it; the word "near" in it says that it is another bug, "brought"
    that it is the change which the bug came with. ``query`` was searched for on ``date`` (ISO).
    """

    link: str = ""
    says: str = ""
    query: str = ""
    date: str = ""

    @property
    def is_same(self) -> bool:
        """Whether ``link`` is about this very bug."""
        return bool(self.link) and not re.search(r"\b(near|brought)\b", self.says)


@dataclasses.dataclass(frozen=True)
class Edit:
    """Lines of one function of torch that are replaced, in the releases of ``releases``.

    ``target`` is ``"module:qualified.name"``. ``old`` are whole lines that the function has
    exactly once, by their own indentation; ``new`` takes their place at the same depth. Both are
    dedented. A function that does not have them is not what the mend knows, and is left alone.
    """

    target: str
    old: str
    new: str
    releases: Releases = ALL_RELEASES

    @property
    def old_lines(self) -> list[str]:
        """The lines to replace."""
        return _lines(self.old)

    @property
    def new_lines(self) -> list[str]:
        """The lines in their place."""
        return _lines(self.new)


def _lines(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").splitlines()


class Patch(Protocol):
    """Sets ``owner.name`` to ``value`` until the mend is taken off, or ``owner[name]`` of a dict;
    what ``apply`` of a mend is given.
    """

    def __call__(self, owner: Any, name: Any, value: Any) -> None:
        """Sets it."""


Kind = Literal["mend", "tripwire", "signature"]
KINDS: tuple[Kind, ...] = ("mend", "tripwire", "signature")


@dataclasses.dataclass(frozen=True)
class Mend:
    """One root cause, as a file says it.

    ``title`` says which API does what wrong when. ``weight`` says what a maintainer of torch
    would think of it: a *bug* is worth a fix, in a setup that people have; what is *exotic* is
    wrong in one that few have, in FSDP1 or in a private API; a *limitation* is known or arguable.
    ``contract`` is what it breaks, ``torch`` the
    releases that have it, as measured, ``public`` where it is known, ``setup`` who runs into it
    and how, ``workaround`` what they can do until torch is mended. ``example`` is a script in
    which that happens in a program that somebody may have: it fails, and passes with the mend.
    It is mended by ``edits``, and by ``apply(patch)`` where what is wrong is no Python function of
    torch that can be edited. A *tripwire* mends nothing and calls
    :func:`fuzzshard.mending.trip` where the cause occurs. A *signature* has neither: any finding
    with one of ``signatures`` (patterns of :mod:`fnmatch`) is taken for it.

    ``lifts`` are refusals that torch does not need any more with the mend, each by the pattern
    that the contract of an engine has for it. A mend that lifts a refusal cannot cure its absence.
    """

    slug: str
    title: str
    component: Component
    weight: Weight
    contract: Promise
    torch: Releases
    public: tuple[Public, ...]
    diagnosis: str
    file: Path
    setup: str = ""
    workaround: str = ""
    example: str = ""
    kind: Kind = "mend"
    edits: tuple[Edit, ...] = ()
    apply: Callable[[Patch], None] | None = None
    signatures: tuple[str, ...] = ()
    lifts: tuple[str, ...] = ()

    def is_told_by(self, signature: str) -> bool:
        """Return whether a finding with this signature is taken for it."""
        return any(fnmatchcase(signature, pattern) for pattern in self.signatures)

    @property
    def example_ranks(self) -> int:
        """How many ranks the example needs, as its first line says."""
        return int(re.findall(r"--nproc-per-node (\d+)", self.example)[0])

    @property
    def is_seen_elsewhere(self) -> bool:
        """Whether another project than torch has met this very bug."""
        return any(look.is_same and "/pytorch/pytorch/" not in look.link for look in self.public)

    @property
    def filed(self) -> tuple[str, ...]:
        """The issues and pull requests of torch about this very bug."""
        here = "/pytorch/pytorch/"
        return tuple(look.link for look in self.public if look.is_same and here in look.link)

    @property
    def changed_lines(self) -> int | None:
        """How many lines of the installed torch it adds and removes; None where it does more."""
        edits = self.edits_here()
        if self.apply is not None or not edits:
            return None
        pairs = [(Counter(edit.old_lines), Counter(edit.new_lines)) for edit in edits]
        return sum((old - new).total() + (new - old).total() for old, new in pairs)

    def edits_here(self, torch: str | None = None) -> tuple[Edit, ...]:
        """Return the edits for version ``torch``, by default the installed one."""
        return tuple(edit for edit in self.edits if edit.releases.include(torch))


def mend_of(module: ModuleType, file: Path) -> Mend:
    """Return the mend that a module says. Raises :class:`UsageError` if that lacks something."""
    needed = ("TITLE", "COMPONENT", "WEIGHT", "CONTRACT", "TORCH")
    names: dict[str, Any] = {name: getattr(module, name, None) for name in needed}
    if missing := [name for name, value in names.items() if value is None]:
        raise UsageError(f"{file} has no {', '.join(missing)}", "see fuzzshard/mending/mend.py")
    names["KIND"] = getattr(module, "KIND", "mend")
    for name, known in (("COMPONENT", COMPONENTS), ("WEIGHT", WEIGHTS), ("KIND", KINDS)):
        if names[name] not in known:
            raise UsageError(f"{file}: {name} is none of {', '.join(known)}", "name one of them")
    mend = Mend(
        slug=file.stem,
        title=str(names["TITLE"]),
        component=names["COMPONENT"],
        weight=names["WEIGHT"],
        contract=module.CONTRACT,
        torch=module.TORCH,
        public=tuple(getattr(module, "PUBLIC", ())),
        diagnosis=inspect.cleandoc(module.__doc__ or ""),
        file=file,
        setup=str(getattr(module, "SETUP", "")),
        workaround=str(getattr(module, "WORKAROUND", "")),
        example=str(getattr(module, "EXAMPLE", "")).lstrip("\n"),
        kind=names["KIND"],
        edits=tuple(getattr(module, "EDITS", ())),
        apply=getattr(module, "apply", None),
        signatures=tuple(getattr(module, "SIGNATURES", ())),
        lifts=tuple(getattr(module, "LIFTS", ())),
    )
    acts = bool(mend.edits) or mend.apply is not None
    if acts == (mend.kind == "signature") or bool(mend.signatures) != (mend.kind == "signature"):
        raise UsageError(
            f"{file}: a {mend.kind} has "
            f"{'SIGNATURES' if mend.kind == 'signature' else 'EDITS or apply()'}",
            "see fuzzshard/mending/mend.py",
        )
    return mend


@functools.cache
def own_mends() -> dict[str, Mend]:
    """Return the mends that fuzzshard has, by their slugs, for every release of torch."""
    return {file.stem: mend_from(file) for file in sorted(OWN.glob("[!_]*.py"))}


@functools.cache
def mend_from(file: Path) -> Mend:
    """Return the mend in a file. Raises :class:`UsageError` for one that cannot be imported."""
    name = f"fuzzshard_mend_{file.stem}"
    try:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"{file}: {type(error).__name__}: {error}", "correct it or leave it out"
        ) from None
    return mend_of(module, file)


def find_mend(name: str) -> Mend:
    """Return the mend with this slug, or in this file."""
    return mend_from(Path(name)) if name.endswith(".py") else own_mends()[name]


def mends_for(torch: str | None = None, extra: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return the names by which ranks find the mends of version ``torch``: slugs, and files below
    ``extra``.

    Raises :class:`UsageError` for a folder that is not there or has no mend, and for mends of
    somebody else that change what others change.
    """
    from fuzzshard.mending.source import clash

    names = [slug for slug, mend in sorted(own_mends().items()) if mend.torch.include(torch)]
    for folder in extra:
        files = sorted(folder.resolve().glob("[!_]*.py"))
        if not files:
            raise UsageError(
                f"{folder} has no mend", "give a folder with one Python file for each mend"
            )
        names += [str(file) for file in files if mend_from(file).torch.include(torch)]
        if why := clash(map(find_mend, names)):
            raise UsageError(
                f"the mends of {folder} and those before it do not go together: {why}",
                "leave one out",
            )
    return tuple(names)
