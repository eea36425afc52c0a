"""What is done to a model of the user's own, as statements: ranks execute what scripts print.

No torch import.
"""

from __future__ import annotations

from fuzzshard.program.engine_script import engine_script
from fuzzshard.subject.subject import Variation


def prepare_lines(variation: Variation) -> list[str]:
    """Shorten lists of blocks and freeze in the whole ``model``, before anything wraps it."""
    lines = []
    if variation.depth:
        lines += [f"del {_at(name)}[{variation.depth} :]" for name in variation.lists]
    for name in variation.frozen:
        lines += [
            "for name, parameter in model.named_parameters(remove_duplicate=False):",
            f"    if f'{{name}}.'.startswith({f'{name}.'!r}):",
            "        parameter.requires_grad_(False)",
        ]
    return lines


def recompute_lines(modules: tuple[str, ...]) -> list[str]:
    """Return lines that checkpoint ``modules``, which a backward then computes again."""
    return [f"checkpoint({_at(name)})" for name in modules]


def compile_lines(modules: tuple[str, ...]) -> list[str]:
    """Compile ``modules`` of ``model`` in place."""
    return [f'{_at(name)}.compile(backend="aot_eager")' for name in modules]


def wrap_lines(engine: str, blocks: tuple[str, ...], variation: Variation) -> list[str]:
    """Wrap ``model``, its ``blocks`` first, as people do who use an engine."""
    script = engine_script(engine)
    lines = script.model_lines([_at(name) for name in blocks], variation)
    return [*lines, f"wrapped = {script.variable}"]


def _at(name: str) -> str:
    return f"model.get_submodule({name!r})"
