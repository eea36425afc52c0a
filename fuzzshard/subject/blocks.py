"""The blocks of a model: its repeated child modules, which are what people wrap one by one."""

from __future__ import annotations

from collections import Counter

from torch import nn

from fuzzshard.case.paths import is_within_any

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules of a kind that a list has more than once, by name."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not isinstance(module, _LISTS):
            continue
        kinds = Counter(type(child) for child in module.children())
        for child, block in module.named_children():
            has_parameters = next(block.parameters(), None) is not None
            path = f"{name}.{child}".removeprefix(".")
            outermost = not is_within_any(path, found)
            is_whole = has_parameters and next(block.children(), None) is not None
            if kinds[type(block)] > 1 and is_whole and outermost:
                found[path] = block
    return found
