"""Saving model and optimizer."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import Moment


class SaveState(op.Op, tag="save_state", frozen=True, kw_only=True):
    """Saves model and optimizer: through ``torch.distributed.checkpoint``, or as copied state
    dicts.

    ``asynchronous`` is ``async_save``, which "first de-stages the state_dict on to the staging
    storage", so that training may go on at once, "and then calls the `save` in a separate thread".
    It gets a process group of its own: collectives of two threads in one group would mix.
    """

    via: op.Via = "dcp"
    asynchronous: bool = False

    lane = "state"
    takes_state = True
    looks = ("trained", "optimizer")
    meanings = {
        "op:save_dcp": "a checkpoint on disk",
        "op:save_state_dict": "copies of state dicts",
    }
    choices = (op.Choice("save_load", 16, 1, needs=("several_steps",), new=True, of_stages=True),)

    @property
    @override
    def restored_by(self) -> op.Op | None:
        return ops.waiting_for_save() if self.asynchronous else None

    @override
    def check(self, at: op.Checked) -> None:
        if self.via == "dcp":
            at.check_one_copy()
            at.check_takes_zeros()
        if self.asynchronous and (self.via != "dcp" or at.case.mesh.saves_in_slices):
            raise InvalidCase(
                "only a checkpoint of all ranks is saved asynchronously", "save synchronously"
            )

    @override
    def statement(self, index: int, *losses: int) -> str:
        waits = ", asynchronous=True" if self.asynchronous else ""
        return f"save_state(via={self.via!r}{waits})"

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"op:save_{self.via}"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.save(self.via, asynchronous=self.asynchronous)

    @classmethod
    @override
    def draw_between(cls, run: op.Run) -> None:
        """Saves, perhaps trains on, perhaps corrupts, loads; then trains on. What else is there
        may come before or after them.

        A checkpoint on disk holds one copy of the buffers, and ranks with data of their own have
        their own.
        """
        if "save_load" not in run.swarm:
            return
        tape, last = run.tape, len(run.between) - 1
        first = min(1 + tape.below(max(last, 1)), last) if tape.chance(80) else 0
        on_disk = tape.chance(70) and not run.has_own_statistics and run.gradients_are_like_zeros
        via: op.Via = "dcp" if on_disk else "state_dict"
        saved, then = run.between[first], run.between[first + tape.below(last - first + 1)]
        late = [*saved] if then is saved and tape.chance(50) else []
        del saved[: len(late)]
        asynchronous = via == "dcp" and not run.case.mesh.saves_in_slices and tape.chance(40)
        saved.append(cls(via=via, asynchronous=asynchronous))
        then += (ops.waiting_for_save(),) if asynchronous else ()
        assign = tape.chance(60) and not (run.case.ties or run.wraps_stages)
        lost: op.Lost | None = None
        if tape.chance(85):
            lost = "rebuild" if tape.chance(50) else "zero"
        moves = via == "dcp" and lost == "rebuild" and tape.chance(90)
        mesh = run.another_mesh() if moves else ()
        then += (*ops.restoring(lost, assign=assign, mesh=mesh), *late)

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        if "save_load" not in run.swarm:
            return ()
        on_disk = run.tape.chance(50) and not run.has_own_statistics
        return (cls(via="dcp" if on_disk else "state_dict"),)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        for saved in (cls(via="state_dict"), cls()):
            yield (saved, *ops.restoring(offered.rng.choice(("zero", "rebuild"))))
        axes = offered.case.mesh.shapes
        yield (cls(), *ops.restoring("rebuild", mesh=offered.rng.choice(axes)))
