"""The ops of schedules. To add one: its file, and a line here."""

from __future__ import annotations

from typing import Literal

from fuzzshard.parts import op
from fuzzshard.parts.op import Op as Op
from fuzzshard.parts.ops.abort import Abort as Abort
from fuzzshard.parts.ops.add_param_group import AddParamGroup as AddParamGroup
from fuzzshard.parts.ops.backward import Backward as Backward
from fuzzshard.parts.ops.cast import Cast as Cast
from fuzzshard.parts.ops.clipping import ClipGradNorm as ClipGradNorm
from fuzzshard.parts.ops.clipping import ClipGradValue as ClipGradValue
from fuzzshard.parts.ops.clipping import Overflow as Overflow
from fuzzshard.parts.ops.clipping import Unscale as Unscale
from fuzzshard.parts.ops.forward import Forward as Forward
from fuzzshard.parts.ops.modes import SetGradEnabled as SetGradEnabled
from fuzzshard.parts.ops.modes import SetMode as SetMode
from fuzzshard.parts.ops.register_hook import RegisterHook as RegisterHook
from fuzzshard.parts.ops.register_parameter_hook import (
    RegisterParameterHook as RegisterParameterHook,
)
from fuzzshard.parts.ops.register_step_hook import RegisterStepHook as RegisterStepHook
from fuzzshard.parts.ops.reshard import Reshard as Reshard
from fuzzshard.parts.ops.running_average import RunningAverage as RunningAverage
from fuzzshard.parts.ops.set_divide_factor import SetDivideFactor as SetDivideFactor
from fuzzshard.parts.ops.set_flag import SetFlag as SetFlag
from fuzzshard.parts.ops.set_grad_dtype import SetGradDtype as SetGradDtype
from fuzzshard.parts.ops.set_path import SetPath as SetPath
from fuzzshard.parts.ops.set_requires_grad import SetRequiresGrad as SetRequiresGrad
from fuzzshard.parts.ops.states import CorruptState as CorruptState
from fuzzshard.parts.ops.states import LoadState as LoadState
from fuzzshard.parts.ops.states import SaveState as SaveState
from fuzzshard.parts.ops.states import WaitForSave as WaitForSave
from fuzzshard.parts.ops.step import Step as Step
from fuzzshard.parts.ops.take_state_dict import TakeStateDict as TakeStateDict
from fuzzshard.parts.ops.tell import Tell as Tell
from fuzzshard.parts.ops.train_unevenly import TrainUnevenly as TrainUnevenly
from fuzzshard.parts.ops.unshard import Unshard as Unshard
from fuzzshard.parts.ops.zero_grad import ZeroGrad as ZeroGrad

OPS: tuple[type[Op], ...] = (
    *(Forward, Backward, SetMode, Step, ZeroGrad, SetRequiresGrad, SetPath, Abort),
    *(Unshard, Reshard, Overflow, Unscale, ClipGradNorm, ClipGradValue, SetGradDtype, Cast),
    *(SetDivideFactor, SetFlag, TakeStateDict, SaveState, CorruptState, LoadState),
    *(SetGradEnabled, RegisterHook),
    *(RegisterParameterHook, RegisterStepHook, AddParamGroup, RunningAverage, WaitForSave, Tell),
    TrainUnevenly,
)
"""In the order in which a schedule that is drawn gets those of one place."""
EVERYDAY: tuple[type[Op], ...] = (SetMode, Step, ZeroGrad)
"""Those that every case may have."""
NEW_CHOICES: tuple[str, ...] = tuple(c.name for op in OPS for c in op.choices if c.new)
"""The choices that engines older than ``fully_shard`` have nothing for."""
CAST_CHOICES: tuple[str, ...] = tuple(c.name for c in Cast.choices)
"""The choices that change the dtype of everything."""
HOOKED_CHOICES: tuple[str, ...] = tuple(c.name for c in RegisterParameterHook.choices)
"""The choices with hooks on parameters, to which no gradient comes where they are flattened."""

# Who writes a schedule says what it means, in these words. No other file needs to know which op
# means it.


def running(call: op.Call) -> Op:
    """Return the op that runs ``call``."""
    return Forward.of(call)


def taking(
    which: op.Which, *, retain_graph: bool = False, outputs: tuple[int, ...] | None = None
) -> Op:
    """Return the backward of those of the pending losses."""
    return Backward(which=which, retain_graph=retain_graph, outputs=outputs)


def iteration(batch: int = 0) -> tuple[Op, Op]:
    """Return a forward of ``batch`` and its backward."""
    return Forward(batch=batch), Backward()


def training(*batches: int, zeroed: Literal["before", "after"] | None = None) -> tuple[Op, ...]:
    """Return an iteration and a step for each of ``batches``; gradients are ``zeroed`` each
    time.
    """
    before, after = ((ZeroGrad(),) if zeroed == place else () for place in ("before", "after"))
    return tuple(op for batch in batches for op in (*before, *iteration(batch), Step(), *after))


def update() -> Op:
    """Return the step of the optimizer."""
    return Step()


def mode(*, train: bool) -> Op:
    """Return the op that calls ``model.train(train)``."""
    return SetMode(train=train)


def grads(*, enabled: bool) -> Op:
    """Return the op that calls ``torch.set_grad_enabled(enabled)``."""
    return SetGradEnabled(enabled=enabled)


def setting(switch: op.Switch) -> Op:
    """Return the op that sets a flag."""
    target, recurse = switch.below
    return SetFlag(flag=switch.flag, value=switch.value, target=target, recurse=recurse)


def toggling(
    target: str, *, value: bool, engines_only: bool = False, ranks: op.Ranks = "all"
) -> Op:
    """Return the op that freezes something, or makes it trainable again."""
    return SetRequiresGrad(target=target, value=value, engines_only=engines_only, ranks=ranks)


def choosing(path: int, block: str = "", ranks: op.Ranks = "all") -> Op:
    """Return the op from which on ``block`` calls its alternative ``path``."""
    return SetPath(path=path, target=block, ranks=ranks)


def gathering(below: op.Below, *, waits: bool = True) -> Op:
    """Return the op that unshards modules, or begins to."""
    return Unshard(target=below.target, recurse=below.recurse, async_op=not waits)


def sharding() -> Op:
    """Return the op that reshards all modules."""
    return Reshard()


def casting_from(dtype: str) -> Op:
    """Return the op that casts a model of ``dtype`` to another dtype."""
    return Cast.to_other(dtype)


def waiting_for_save() -> Op:
    """Return the op that waits until an asynchronous save is complete."""
    return WaitForSave()


def restoring(
    lost: op.Lost | None,
    *,
    assign: bool = False,
    mesh: tuple[int, ...] = (),
    evaluations: int = 0,
) -> tuple[Op, ...]:
    """Return how what was saved is loaded, after it was ``lost`` so, perhaps on another mesh, and
    so many forwards without gradients ran, which leave parameters unsharded.
    """
    corrupted = () if lost is None else (CorruptState(how=lost, mesh=mesh),)
    return *corrupted, *[Forward(grad=False)] * evaluations, LoadState(assign=assign)
