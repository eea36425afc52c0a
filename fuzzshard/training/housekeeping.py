"""What a rank does between two cases, so that the ten-thousandth costs what the first one did."""

from __future__ import annotations

import gc

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, _redistribute
from torch.nn.parallel import DistributedDataParallel

from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.state import forget_classes
from fuzzshard.model.build import forget_models
from fuzzshard.training.leaked import collect_garbage


def clean_up(case: Case) -> None:
    """Collects what ``case`` has left. What is alive then belongs to torch's caches, and stays:
    the garbage collector never looks at it again.
    """
    forget_classes()
    forget_models()
    DistributedDataParallel._active_ddp_module = None  # stays where a forward of replicate raises
    if case.compile is not None:
        torch._dynamo.reset()
    collect_garbage()
    gc.freeze()


def clear_caches() -> None:
    """Has torch find out again what operations do to layouts and sizes, and how one layout becomes
    another, which a mend may change. It keeps that for ever, and with it every mesh.
    """
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache"):
        torch._C._clear_DTensor_sharding_propagator_cache()
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    FakeTensorMode.cache_clear()
