"""What is judged beside tensors: by every module of this folder that has a function ``judge``."""

from __future__ import annotations

import importlib
import pkgutil

import fuzzshard.oracles
from fuzzshard.oracles.judge import Run
from fuzzshard.verdict import Finding

_FILES = pkgutil.iter_modules(fuzzshard.oracles.__path__, "fuzzshard.oracles.")
_MODULES = [importlib.import_module(file.name) for file in _FILES if file.name != __name__]
_JUDGES = [module.judge for module in _MODULES if hasattr(module, "judge")]


def findings_beside_tensors(run: Run) -> list[Finding]:
    """Ask every judge what is otherwise than documented: hooks, collectives, what is left."""
    return [finding for judge in _JUDGES for finding in judge(run)]
