"""The ops of schedules. To add one: its file, and a line here."""

from __future__ import annotations

from fuzzshard.parts.op import Op as Op
from fuzzshard.parts.ops.abort import Abort as Abort
from fuzzshard.parts.ops.backward import Backward as Backward
from fuzzshard.parts.ops.cast import Cast as Cast
from fuzzshard.parts.ops.clip_grad_norm import ClipGradNorm as ClipGradNorm
from fuzzshard.parts.ops.corrupt_state import CorruptState as CorruptState
from fuzzshard.parts.ops.forward import Forward as Forward
from fuzzshard.parts.ops.load_state import LoadState as LoadState
from fuzzshard.parts.ops.reshard import Reshard as Reshard
from fuzzshard.parts.ops.save_state import SaveState as SaveState
from fuzzshard.parts.ops.set_divide_factor import SetDivideFactor as SetDivideFactor
from fuzzshard.parts.ops.set_flag import SetFlag as SetFlag
from fuzzshard.parts.ops.set_mode import SetMode as SetMode
from fuzzshard.parts.ops.set_path import SetPath as SetPath
from fuzzshard.parts.ops.set_requires_grad import SetRequiresGrad as SetRequiresGrad
from fuzzshard.parts.ops.step import Step as Step
from fuzzshard.parts.ops.take_state_dict import TakeStateDict as TakeStateDict
from fuzzshard.parts.ops.unshard import Unshard as Unshard
from fuzzshard.parts.ops.zero_grad import ZeroGrad as ZeroGrad

OPS: tuple[type[Op], ...] = (
    *(Forward, Backward, SetMode, Step, ZeroGrad, SetRequiresGrad, SetPath, Abort),
    *(Unshard, Reshard, ClipGradNorm, Cast, SetDivideFactor, SetFlag, TakeStateDict),
    *(SaveState, CorruptState, LoadState),
)
"""In the order in which a schedule that is drawn gets those of one place."""
