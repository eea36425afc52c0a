"""Mixed precision as ``MixedPrecisionPolicy`` documents it, done to a plain module: what the
reference does.

Follows the docstring of ``MixedPrecisionPolicy``
(torch/distributed/fsdp/_fully_shard/_fsdp_api.py) and, for FSDP1, that of ``MixedPrecision``
(torch/distributed/fsdp/api.py), with classic master weights: the optimizer steps parameters in
their own dtype, modules compute with low-precision copies.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from fuzzshard.analysis.dtypes import (
    Casts,
    casts,
    grad_dtypes_set,
    model_policy,
    policies,
    reductions_follow_parameters,
)
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.engines.base import DTYPES
from fuzzshard.engines.nested import map_tensors
from fuzzshard.engines.rounding import Rounding, Shake, rounding_functions


class ParameterDtypes(NamedTuple):
    """What policies say of parameters, by name.

    ``computing`` are the dtypes that modules compute in, ``reduce`` those that gradients are
    reduced in, each only where a policy names one. With ``follow_parameters`` a gradient without
    an entry is reduced in the ``grad_dtype`` of its trained parameter, which the user may have set
    (``retyped``), and what arrives for one in a narrower dtype is cast at once: "the autograd
    engine casts incoming gradients" (``torch.Tensor.grad_dtype``). Without, ``reduce_dtype``
    "takes on the ``param_dtype`` value" where it is None (``MixedPrecision`` of FSDP1).
    ``roundings`` are of parameters whose values are rounded before they are cast.
    """

    computing: Mapping[str, torch.dtype]
    reduce: Mapping[str, torch.dtype]
    follow_parameters: bool
    retyped: Set[str]
    roundings: Mapping[str, Rounding]


def parameter_dtypes(case: Case, found: Inferred) -> ParameterDtypes:
    """Return what the policies of ``case`` say."""
    owned = {
        fqn: policies(case)[owner] for fqn, owner in found.owners.items() if owner is not None
    }
    computing = {
        fqn: DTYPES[dtype]
        for fqn, policy in owned.items()
        if policy and (dtype := policy.computes(found.parameters[fqn]))
    }
    reduce = {
        fqn: DTYPES[dtype] for fqn, policy in owned.items() if policy and (dtype := policy.reduce)
    }
    follow_parameters = reductions_follow_parameters(case)
    return ParameterDtypes(
        computing,
        reduce if follow_parameters else computing | reduce,
        follow_parameters,
        grad_dtypes_set(case).keys(),
        rounding_functions(case, found),
    )


class MasterWeights:
    """The low-precision copies of parameters that a model computes with.

    At rest the parameters themselves, the *masters*, are registered. While the model is
    :meth:`computing`, and during a backward, the *leaves* take their places, at every module where
    a parameter is registered. Gradients arrive at the leaves, in the dtype that ``policy`` says.
    """

    def __init__(self, model: nn.Module, policy: ParameterDtypes) -> None:
        self.leaves: dict[str, nn.Parameter] = {}
        self.shaken: Shake | None = None
        """How what is rounded changes then."""
        self._policy = policy
        self._copied: dict[str, tuple[int, int]] = {}
        others = policy.computing.keys() | policy.roundings.keys()
        others |= policy.reduce.keys() | policy.retyped if policy.follow_parameters else set()
        by_parameter = {model.get_parameter(fqn): fqn for fqn in sorted(others)}
        self._places: list[tuple[nn.Module, str, str]] = [
            (module, name, by_parameter[parameter])
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter in by_parameter
        ]
        self._masters: list[nn.Parameter] = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Registers the leaves, with the values that the masters have now.

        Where they are registered, in the recomputation of a checkpoint during a backward, they
        stay so.
        """
        if self._masters:
            yield
            return
        self.register_leaves()
        try:
            yield
        finally:
            self.register_masters()

    def register_leaves(self) -> None:
        """Let modules compute in low precision.

        Leaves are for later forwards with gradients, too, whatever mode this one runs in.
        """
        self._masters = [module.get_parameter(name) for module, name, _ in self._places]
        with torch.inference_mode(False):
            for (module, name, fqn), master in zip(self._places, self._masters, strict=True):
                setattr(module, name, self._leaf(fqn, master))

    def register_masters(self) -> None:
        """Puts the trained parameters back in their places."""
        for (module, name, _), master in zip(self._places, self._masters, strict=False):
            setattr(module, name, master)
        self._masters = []

    def _leaf(self, fqn: str, master: nn.Parameter) -> nn.Parameter:
        """Return the copy of ``master``, written anew only when that has changed: a backward may
        need it yet.
        """
        dtype = self._policy.computing.get(fqn, master.dtype)
        gradient = self._arriving(fqn, dtype, master.grad_dtype)
        arrives = dtype == master.dtype and gradient == master.grad_dtype
        if arrives and fqn not in self._policy.roundings:
            self.leaves.pop(fqn, None)
            return master
        leaf = self.leaves.get(fqn)
        state = (master.data_ptr(), master._version)
        if leaf is None or leaf.dtype != dtype:
            self._copied.pop(fqn, None)
            leaf = self.leaves[fqn] = nn.Parameter(torch.empty_like(master, dtype=dtype))
            if gradient != dtype:
                leaf.grad_dtype = gradient
        if self._copied.get(fqn) != state:
            with torch.no_grad():
                self._rewrite(leaf, fqn, master)
        self._copied[fqn] = state
        leaf.requires_grad_(master.requires_grad)
        leaf._backward_hooks = master._backward_hooks  # those of users: gradients arrive here
        return leaf

    def _arriving(
        self, fqn: str, dtype: torch.dtype, trained: torch.dtype | None
    ) -> torch.dtype | None:
        """Return the dtype in which a backward adds up the gradients of all uses of a parameter;
        None: the one that they have.

        A wider ``grad_dtype`` is promised for what is reduced, not for this sum. ``fully_shard``
        leaves it in the dtype of the computation (``FSDPParamGroup._set_unsharded_grad_dtypes``),
        or not. The reference takes the coarser, so that what this rounds is never due exactly.
        """
        if not self._policy.follow_parameters:
            return dtype
        due = self._policy.reduce.get(fqn, trained)
        return None if due is None or due.itemsize > dtype.itemsize else due

    def _rewrite(self, leaf: nn.Parameter, fqn: str, master: nn.Parameter) -> None:
        """Rounds what training has made of ``master`` to the values and the dtype of its copy."""
        rounding = self._policy.roundings.get(fqn)
        leaf.copy_(master if rounding is None else rounding(master))
        if rounding is not None and self.shaken is not None:
            self.shaken.apply(leaf, fqn)


def accumulates_in_reduce_dtype(case: Case) -> bool:
    """Return whether unsynchronised gradients add up in the dtype of the reduction.

    ``MixedPrecisionPolicy`` says so; FSDP1 leaves them as the backward made them.
    """
    return model_policy(case) is None


def cast_boundaries(case: Case, modules: Mapping[str, nn.Module]) -> None:
    """Makes the wrapped ``modules`` (by path) cast their inputs and outputs as the policies
    say.
    """
    for path, dtypes in casts(case).items():
        module = modules[path]
        module.register_forward_pre_hook(
            functools.partial(_cast_inputs, dtypes), with_kwargs=True, prepend=True
        )
        module.register_forward_hook(functools.partial(_cast_outputs, dtypes))


def cast_buffers(case: Case, model: nn.Module) -> None:
    """Makes ``model`` cast its buffers in its first forward, where its policy names a dtype for
    them, and have them in their own in states (``MixedPrecision``).
    """
    policy = model_policy(case)
    if policy is None or policy.buffer is None:
        return
    dtype = DTYPES[policy.buffer]
    own = {name: buffer.dtype for name, buffer in model.named_buffers()}

    def cast(module: nn.Module, args: object) -> None:
        with torch.inference_mode(False):
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.data = buffer.to(dtype)
        first.remove()

    def restore(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        for name in own.keys() & state.keys():
            state[name] = state[name].to(own[name])

    first = model.register_forward_pre_hook(cast, prepend=True)
    model.register_state_dict_post_hook(restore)  # type: ignore[no-untyped-call]


def _cast_inputs(
    dtypes: Casts, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _cast(dtypes.inputs, args), _cast(dtypes.inputs, kwargs)


def _cast_outputs(dtypes: Casts, module: nn.Module, args: Any, output: Any) -> Any:
    return _cast(dtypes.outputs, output)


def _cast(name: str | None, value: Any) -> Any:
    if name is None:
        return value
    dtype = DTYPES[name]
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, value)
