"""Changing a model as a variation says, and what there is to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from torch import nn

from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.subject.subject import Outline


def outline(model: nn.Module) -> Outline:
    """Return what variations may name."""
    blocks = blocks_of(model)
    lists = Counter(name.rpartition(".")[0] for name in blocks)
    can_be_cut = (nn.ModuleList, nn.Sequential)
    called = [name for name, module in model.named_modules() if name and _is_called(module)]
    ties = aliases(dict(model.named_parameters(remove_duplicate=False)))
    return Outline(
        modules=tuple(called),
        wrappable=tuple(name for name in called if not any(_splits(name, t) for t in ties)),
        blocks=tuple(blocks),
        parameters=tuple(name for name, p in model.named_parameters() if p.requires_grad),
        lists=tuple(n for n in lists if isinstance(model.get_submodule(n), can_be_cut)),
        depth=max(lists.values(), default=0),
    )


def aliases(parameters: Mapping[str, nn.Parameter]) -> frozenset[frozenset[str]]:
    """Return the groups of names that are one parameter."""
    groups: dict[int, set[str]] = {}
    for name, parameter in parameters.items():
        groups.setdefault(id(parameter), set()).add(name)
    return frozenset(frozenset(names) for names in groups.values() if len(names) > 1)


def _splits(module: str, tie: frozenset[str]) -> bool:
    """Return whether a module holds some of the names of a parameter and not all."""
    within = {name for name in tie if is_within(name, module)}
    return bool(within) and within != tie


def _is_called(module: nn.Module) -> bool:
    has_parameters = next(module.parameters(), None) is not None
    return has_parameters and not isinstance(module, nn.ModuleList | nn.ModuleDict)


def present(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``names`` that a model has, which may be too short for some."""
    there = {name for name, _ in model.named_modules()}
    return tuple(name for name in names if name in there)


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
