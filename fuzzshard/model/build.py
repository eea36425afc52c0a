"""Case -> ``nn.Module``: executes the generated source and fills in named values."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import linecache
import sys
import types
from types import CodeType

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within
from fuzzshard.model.expressions import MODEL_CLASS
from fuzzshard.model.source import model_source
from fuzzshard.model.values import named_values
from fuzzshard.parts.statements import seed_of

MODULE_PREFIX = "fuzzshard_model_"
"""How the modules are named that generated models are defined in."""

_NAMES = [f"{MODULE_PREFIX}{i}" for i in range(16)]
_MODULES = itertools.cycle(_NAMES)
"""Names that models take turns with: dataclasses and Dynamo look up the module that code is
defined in.
"""
_FILE = "<fuzzshard model "


def forget_models() -> None:
    """Lets go of the classes and the source lines of all models; for when none of them is in
    use.
    """
    for name in _NAMES:
        sys.modules.pop(name, None)
    for filename in [name for name in linecache.cache if name.startswith(_FILE)]:
        del linecache.cache[filename]
    _compiled.cache_clear()


def _fresh_module() -> types.ModuleType:
    name = next(_MODULES)
    sys.modules[name] = module = types.ModuleType(name)
    return module


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> CodeType:
    """Return the code of a model source; tracebacks through it show its lines."""
    filename = f"{_FILE}{seed_of(source):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")


def build_model(case: Case, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the plain model of ``case`` in training mode, the same on every rank.

    Matrices are scaled by 1/sqrt(fan-in) when the values are Gaussian, so that activations keep
    their size.
    """
    namespace = _fresh_module().__dict__
    namespace |= {"torch": torch, "nn": nn, "checkpointed": checkpoint}
    namespace |= {"collections": collections, "dataclasses": dataclasses}
    exec(_compiled(model_source(case)), namespace)
    build = namespace[MODEL_CLASS]
    assert callable(build)
    with device if device.type == "meta" else contextlib.nullcontext():
        model: nn.Module = build()
    model.to(dtype)
    for entry in case.dtypes:
        for fqn in inferred(case).parameters:
            if is_within(fqn, entry.target):
                parameter = model.get_parameter(fqn)
                parameter.data = parameter.data.to(getattr(torch, entry.dtype))
    with torch.no_grad():
        for fqn, shape in inferred(case).parameters.items():
            values = named_values(case.values, shape, dtype, case.seed, fqn)
            if case.values == "gaussian" and len(shape) > 1:
                values /= values[0].numel() ** 0.5
            model.get_parameter(fqn).copy_(values)
    return model.to(device)
