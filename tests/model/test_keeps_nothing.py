"""A rank that has run many cases holds no more than one that has run a few."""

from __future__ import annotations

import gc
import weakref

import pytest
from torch import nn
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed.fsdp._fully_shard import _fully_shard

from fuzzshard.engines.fully_shard.state import forget_classes
from fuzzshard.model.build import _fresh_module


def test_no_wrapper_class_keeps_a_generated_class(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = type("Net", (nn.Module,), {"__module__": _fresh_module().__name__})
    caches = {"cls_to_fsdp_cls": _fully_shard, "cls_to_replicate_cls": replicate_with_fsdp}
    for name, module in caches.items():
        wrapped = type("Wrapped", (generated,), {})
        monkeypatch.setattr(module, name, {generated: wrapped, nn.Linear: nn.Linear})
        del wrapped
    forget_classes()
    assert [list(getattr(module, name)) for name, module in caches.items()] == [[nn.Linear]] * 2
    alive = weakref.ref(generated)
    del generated
    gc.collect()
    assert alive() is None
