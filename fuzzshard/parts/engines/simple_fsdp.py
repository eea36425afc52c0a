"""SimpleFSDP; torchtitan documents it by its source."""

from __future__ import annotations

from typing import ClassVar

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines.older import (
    HOOKS,
    OF_GROUPS,
    OTHER_GRAPH_ON_ONE_RANK,
    POLICIES,
    SWAPPED,
    UNSYNCED,
)
from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.op import Choice

_TITAN = "torchtitan/experiments/simple_fsdp/simple_fsdp.py"


class SimpleFSDP(EngineSpec):
    """Shards each parameter by itself, whatever its wrap groups are (arXiv 2411.00284).

    All-gathers and reduce-scatters are nodes of the autograd graph, which torch.compile traces.
    """

    name = "simple_fsdp"
    title = "SimpleFSDP"
    tag = "SimpleFSDP"
    meaning = "parameters are DTensors that modules redistribute when they read them"
    choice = Choice(
        "simple_fsdp",
        10,
        place=102,
        # what only groups of fully_shard have
        excludes=("no_sync", "partial_sync", "no_all_reduce", "divide_factor"),
    )
    excludes: ClassVar[Excludes] = {
        **EngineSpec.excludes,
        **OF_GROUPS,
        f"{POLICIES}|all_gather:float8|fsdp1:precision & casts_otherwise": Exclusion(
            "mixed precision that is not one policy of the whole model, of parameters and of "
            "gradients, or that casts what modules within the model get or return",
            f"{_TITAN}, MixedPrecisionPolicy: param_dtype and reduce_dtype, of the whole model; "
            "replicate_compute: parameters are cast, and the user casts what the model gets",
        ),
        "tensor:*": Exclusion(
            "parameters that are tensor parallel already",
            f"fuzzshard: not tried; {_TITAN}, _distribute_dtensor: 'experimental enhancements to "
            "distribute a DTensor'",
        ),
        "leaf:lstm": Exclusion(
            "a module that reads its parameters from a list of its own, and not as attributes",
            f"{_TITAN}, _register_parametrization: attributes of the module's class compute the "
            "whole from module._parameters; torch/nn/modules/rnn.py, forward reads "
            "self._flat_weights",
        ),
        UNSYNCED: Exclusion(
            "a backward that does not synchronise gradients",
            f"{_TITAN}, replicate_compute: every backward reduces, in the gradient of "
            "redistribute()",
        ),
        "op:grad_dtype_any": Exclusion(
            "gradients of any dtype that groups of fully_shard reduce together with wider ones",
            "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, MixedPrecisionPolicy: 'Gradients "
            "with different dtypes in one communication group are reduced in their promoted "
            "dtype'",
        ),
        f"op:cast & {HOOKS}|op:grad_dtype_*": SWAPPED,
        "input:no_rows & leaf:dropout": OTHER_GRAPH_ON_ONE_RANK,
    }
