"""The names that tensors and modules have in the plain model, whatever wraps them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Names that DDP, ``torch.compile``, checkpointing and FSDP1 put before those of the content."""

ADDED = (*WRAPPERS, "base_layer", "base_model", "model")
"""The same with PEFT's layers and models, which hold what was there before."""


class PlainNames:
    """Finds plain names; ``given`` are those that the user says, which come first."""

    def __init__(self, plain: Collection[str], given: Mapping[str, str]) -> None:
        self._plain = frozenset(plain)
        self._given = given
        self._by_content = {_without(name.split("."), ADDED): name for name in plain}

    def of(self, name: str) -> str:
        """Return the plain name of ``name``; if there is none, what is left without wrappers."""
        stripped = _without(name.split("."), WRAPPERS)
        for candidate in (name, stripped):
            if candidate in self._given:
                return self._given[candidate]
        if stripped in self._plain:
            return stripped
        bare = _without(name.split("."), ADDED)
        return self._by_content.get(bare, stripped)


def _without(parts: Iterable[str], added: Collection[str]) -> str:
    return ".".join(part for part in parts if part not in added)
