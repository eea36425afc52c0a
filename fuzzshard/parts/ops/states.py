"""Saving model and optimizer, losing them, so that loading proves something, and loading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import MODIFIED, Moment
from fuzzshard.parts.ops.add_param_group import KEPT_GROUPS
from fuzzshard.parts.ops.set_requires_grad import KEYS_DIFFER
from fuzzshard.parts.statements import call_lines

STATE_OPTIONS = {
    "state:full_state_dict": "a state whose tensors are whole",
    "state:cpu_offload": "a state on the CPU",
    "state:ignore_frozen_params": "a state without what is frozen",
    "state:flatten_optimizer_state_dict": "a state of the optimizer that is one flat dict",
    "state:broadcast_from_rank0": "a state that rank 0 alone has, and broadcasts to load it",
    "state:not_strict": "a state that may lack keys",
    "state:rank0": "a state that rank 0 alone has, on the CPU",
}
"""What a case has that asks for a state with options."""
_DOC = "torch/distributed/checkpoint/state_dict.py, StateDictOptions"
Stager = Literal["blocking", "writer", "shared", "background"]
"""What copies a state for ``async_save`` in place of what torch makes by itself."""
_STAGERS: dict[Stager, str] = {
    "blocking": "async_stager=BlockingAsyncStager()",
    "writer": "storage_writer=dcp.FileSystemWriter(folder)",
    "shared": "async_stager=DefaultStager(StagingOptions(False, True, False, False))",
    "background": "async_stager=DefaultStager(StagingOptions(False, False, True, False))",
}


def is_of_rank0(options: Sequence[op.StateOption]) -> bool:
    """Return whether rank 0 alone gets the state."""
    return {"full_state_dict", "cpu_offload"} <= {*options}


def option_features(options: Sequence[op.StateOption]) -> op.Features:
    """Yield the features of a state that is asked for with ``options``."""
    yield from (f"state:{option}" for option in options)
    if is_of_rank0(options):
        yield "state:rank0"


def option_misfits(options: Sequence[op.StateOption], at: op.Checker) -> op.Reasons:
    """Yield why no state can be asked for with ``options``."""
    if "broadcast_from_rank0" in options and "full_state_dict" not in options:
        yield (
            "a state that is no full one is to be broadcast",
            f"{_DOC}: 'full_state_dict must be set to True when using this option'",
        )
    if "ignore_frozen_params" in options:
        if any(each.wants_sharded and each.ranks != "all" for each in at.ops):
            yield KEYS_DIFFER
        if at.engines_train_more:
            yield (
                "a state lacks what is frozen, and engines train what the reference keeps frozen",
                "ask for all parameters",
            )


def draw_options(run: op.Run) -> tuple[op.StateOption, ...]:
    """Draw what goes together, but for what is ``not_strict``."""
    tape = run.tape
    options: list[op.StateOption] = []
    if tape.chance(50):
        options.append("full_state_dict")
    if tape.chance(40):
        options.append("cpu_offload")
    if tape.chance(35):
        options.append("ignore_frozen_params")
    return tuple(options)


class SaveState(op.Op, tag="save_state", frozen=True, kw_only=True):
    """Saves model and optimizer: through ``torch.distributed.checkpoint``, or as copied state
    dicts.

    By ``"dcp"`` a checkpoint has what ``get_model_state_dict`` and ``get_optimizer_state_dict``
    return, by ``"stateful"`` it has the objects themselves: "dcp.save will call state_dict" of
    each, and ``dcp.load`` their ``load_state_dict``. By ``"get_state_dict"`` the result of that is
    kept, and given to ``set_state_dict``. ``options`` are those of ``StateDictOptions``, for
    asking and for setting.

    ``asynchronous`` is ``async_save``, which "first de-stages the state_dict on to the staging
    storage", so that training may go on at once, "and then calls the `save` in a separate thread".
    It gets a process group of its own: collectives of two threads in one group would mix. Its
    planner writes nothing before somebody waits for it, so that training has always gone on; with
    a ``stager`` another part of torch makes the copies.
    """

    via: op.Via = "dcp"
    asynchronous: bool = False
    stager: Stager | None = None
    options: tuple[op.StateOption, ...] = ()

    lane = "state"
    takes_state = of_optimizer = True
    looks = ("trained", "optimizer")
    sources = """
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions

def states(model, optimizer, options=None):  # that of the model first: it reshards
    model_state = get_model_state_dict(model, options=options)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optimizer": state}

def trainable(model):  # its state dict without what is frozen
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, p in named if not p.requires_grad}
    return {name: t for name, t in model.state_dict().items() if name not in frozen}

def whole(state):
    assert not any(isinstance(t, DTensor) for t in tree_leaves(state)), "full_state_dict"
    return state

def new_folder():  # one that all ranks share
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    return folder[0]

def saving_group():  # of its own: another thread uses it
    return dist.new_group(backend="gloo")

class LatePlanner(dcp.DefaultSavePlanner):  # lets nothing be written before training has gone on
    def __init__(self):
        super().__init__()
        self.gone_on = threading.Event()

    def finish_plan(self, plan):
        self.gone_on.wait(timeout=20)  # a program that fails ends, too
        return super().finish_plan(plan)
"""
    meanings = {
        "op:save_dcp": "a checkpoint on disk",
        "op:save_stateful": "a checkpoint of the optimizer's own state dict",
        "op:save_get_state_dict": "what get_state_dict returns",
        "op:save_state_dict": "copies of state dicts",
        "op:save_before_step": "a state that is asked for by name before the first step",
        "op:stager_blocking": "an asynchronous save with a BlockingAsyncStager",
        "op:stager_writer": "an asynchronous save that its FileSystemWriter stages",
        "op:stager_shared": "an asynchronous save staged in shared memory",
        "op:stager_background": "an asynchronous save that a thread stages",
        **STATE_OPTIONS,
    }
    choices = (op.Choice("save_load", 22, 1, needs=("several_steps",), new=True, of_stages=True),)

    @property
    @override
    def restored_by(self) -> op.Op | None:
        return ops.waiting_for_save() if self.asynchronous else None

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.saved, at.saving = self.via, at.saving or self.asynchronous
        at.saved_with, at.saved_frozen = self.options, frozenset(at.frozen)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.saving_misfits()
        if at.added:
            yield KEPT_GROUPS
        yield from self._option_misfits(at)
        if self.via != "state_dict":
            yield from self._shared_misfits(at)
        if at.is_partial or at.stepped_partial:
            yield (
                "a state is saved that gradients of single ranks wait for, or have changed",
                "reduce all gradients before",
            )
        on_disk = self.via in op.ON_DISK
        if self.asynchronous and (not on_disk or at.case.mesh.saves_in_slices):
            yield ("only a checkpoint of all ranks is saved asynchronously", "save synchronously")
        if self.stager and not self.asynchronous:
            yield "nothing is staged for a save that is waited for", "save asynchronously"

    def _option_misfits(self, at: op.Checker) -> op.Reasons:
        yield from option_misfits(self.options, at)
        if self.options and self.via not in op.BY_NAME:
            yield "options of no get_state_dict", f"save via one of {op.BY_NAME}"
        if is_of_rank0(self.options) and "broadcast_from_rank0" not in self.options:
            yield (
                "rank 0 alone has a state, and does not broadcast it when it is loaded",
                f"{_DOC}: 'if full_state_dict is also true, then only the rank0 will get the "
                "state_dict': broadcast_from_rank0",
            )
        if "ignore_frozen_params" in self.options and "not_strict" not in self.options:
            yield "a state without what is frozen is to have all keys", "add not_strict"
        kept = {"full_state_dict", "ignore_frozen_params"} <= {*self.options}
        if kept and at.frozen & at.optimized:
            yield (
                "the optimizer has what is frozen, and a state without that is set as a full one",
                f"{_DOC} does not say what becomes of the state of frozen parameters: it is kept "
                "with full_state_dict, and else dropped (_load_optim_state_dict)",
            )

    def _shared_misfits(self, at: op.Checker) -> op.Reasons:
        """A checkpoint must be the same on every rank. That of an optimizer without states makes a
        step on zeros, from which the states take their dtypes.
        """
        if any(each.wants_sharded and each.ranks != "all" for each in at.ops):
            yield KEYS_DIFFER
        shares = self.via in op.ON_DISK or "broadcast_from_rank0" in self.options
        if shares and at.saves_own_buffers:
            yield (
                "a checkpoint holds one copy of a buffer, and every rank has its own",
                'save via "state_dict", or give all ranks the same inputs and drop nothing out',
            )
        if self.via in op.BY_NAME and not at.gradients_are_like_zeros:
            yield (
                f"save_state(via={self.via!r}) needs gradients of the dtype of their parameters",
                "torch/distributed/checkpoint/state_dict.py, _init_optim_state, gives parameters "
                'zeros of their own dtype as gradients: save via "state_dict"',
            )

    @override
    def statement(self, index: int, *losses: int) -> str:
        waits = ", asynchronous=True" if self.asynchronous else ""
        waits += f", stager={self.stager!r}" if self.stager else ""
        given = f", options={self.options}" if self.options else ""
        return f"save_state(via={self.via!r}{waits}{given})"

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"op:save_{self.via}"
        yield from option_features(self.options)
        if self.via in op.BY_NAME and not at.steps:
            yield "op:save_before_step"
        if self.stager:
            yield f"op:stager_{self.stager}"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.save(self)

    def async_lines(self, states: str) -> list[str]:
        """Save ``states`` in a thread, which the planner holds up before it writes; whoever gives
        a stager closes it.
        """
        lines, where = ["planner = LatePlanner()"], ["checkpoint_id=folder"]
        where += ["process_group=saving_group()", "planner=planner"]
        if self.stager:
            argument, made = _STAGERS[self.stager].split("=", 1)
            lines.append(f"stager = {made}")
            where.append(f"{argument}=stager")
        lines += call_lines("saving = dcp.async_save", [states, *where])
        if self.stager == "background":
            lines += ["saving.staging_completion.result()", "saving = saving.upload_completion"]
        closed = "saving.add_done_callback(lambda _: stager.close())"
        return [*lines, closed] if self.stager else lines

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Draw a save and a load between two steps of training.

        Steps may come between the two, and a change of the state that the load has to undo.

        A checkpoint on disk holds one copy of the buffers, and ranks with data of their own have
        their own.
        """
        if moment != "between_steps" or "save_load" not in run.swarm:
            return
        tape, last = run.tape, len(run.between) - 1
        first = min(1 + tape.below(max(last, 1)), last) if tape.chance(60) else 0
        save = cls(via="state_dict")
        if tape.chance(80):
            other = cls._drawn_by_torch(run)
            save = other if run.at.why_not(other) is None else save
        saved, then = run.between[first], run.between[first + tape.below(last - first + 1)]
        late = [*saved] if then is saved and tape.chance(50) else []
        del saved[: len(late)]
        saved.append(save)
        assign = tape.chance(60) and not run.case.pipelining.replicates
        assign &= save.via in ("dcp", "state_dict")
        lost: op.Lost | None = None
        if tape.chance(85):
            often = 85 if save.reshards and not save.asynchronous else 50
            lost = "rebuild" if tape.chance(often) else "zero"
        moves = save.reshards and lost == "rebuild" and tape.chance(90)
        mesh = run.another_mesh() if moves else ()
        evaluations = (run.microbatches or 1) * (not run.in_order and tape.chance(25))
        restored = ops.restoring(lost, assign=assign, mesh=mesh, evaluations=evaluations)
        if save.asynchronous:  # what is lost in the meantime has been copied
            after = 1 if lost and tape.chance(75) else 0
            restored = (*restored[:after], ops.waiting_for_save(), *restored[after:])
        if mesh and tape.chance(85):  # and back: replicas become shards, too
            case = run.case
            home = next(axes for axes in case.mesh.shapes if case.on(axes) == case)
            again = replace(save, asynchronous=False, stager=None)
            restored += (again, *ops.restoring("rebuild", mesh=home))
        then += (*restored, *late)

    @property
    def reshards(self) -> bool:
        """Whether what is saved can be loaded on another mesh."""
        return self.via == "dcp" or "full_state_dict" in self.options

    @classmethod
    def _drawn_by_torch(cls, run: op.Run) -> SaveState:
        """Draw a save by functions of ``torch.distributed.checkpoint``."""
        tape = run.tape
        via: op.Via = tape.weighted((("dcp", 6), ("get_state_dict", 3), ("stateful", 2)))
        asynchronous = via != "get_state_dict" and tape.chance(55)
        stager = (
            tape.weighted(((None, 4), *((each, 1) for each in _STAGERS))) if asynchronous else None
        )
        if via == "stateful" or tape.chance(40):
            return cls(via=via, asynchronous=asynchronous, stager=stager)
        options = [*draw_options(run)]
        if tape.chance(40):
            options.append("flatten_optimizer_state_dict")
        if "full_state_dict" in options and ("cpu_offload" in options or tape.chance(40)):
            options.append("broadcast_from_rank0")
        if "ignore_frozen_params" in options or tape.chance(20):
            options.append("not_strict")
        return cls(via=via, asynchronous=asynchronous, stager=stager, options=tuple(options))

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        if run.tape.chance(30):
            return (cls(via="state_dict"),)
        return (replace(cls._drawn_by_torch(run), asynchronous=False, stager=None),)


class WaitForSave(op.Op, tag="wait_for_save", frozen=True, kw_only=True):
    """Waits for what ``torch.distributed.checkpoint.async_save`` returned: "A future holding the
    resultant Metadata object from `save`".
    """

    says = "saving.result()"
    lane = "state"
    meanings = {"op:save_async": "a checkpoint that is written while training goes on"}

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.saving = False

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if not at.saving:
            yield "nothing is being saved", "save asynchronously before it"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.unless_reference(["planner.gone_on.set()", self.says])


class LoadState(op.Op, tag="load_state", frozen=True, kw_only=True):
    """Loads what was saved last, the way it was saved.

    ``assign`` is that of ``load_state_dict``. A checkpoint is loaded in place, into the tensors of
    the state dicts, or with ``assign`` into copies that ``set_model_state_dict`` and its like are
    given.
    """

    assign: bool = False

    lane = "state"
    takes_state = loads = of_optimizer = True
    never = {"forward_to_backward": MODIFIED}
    looks = ("trained", "buffers", "optimizer", "taken")
    sources = """
def of_trainable(optimizer, saved):  # its state without that of what is frozen
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = {i: s for i, s in saved["state"].items() if parameters[i].requires_grad}
    return {**saved, "state": states}

def fill_state(optimizer, saved):  # load_state_dict casts states to the dtype of their parameter
    held = {p: dict(state) for p, state in optimizer.state.items()}
    optimizer.load_state_dict(saved)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, state in saved["state"].items():
        there = held.get(parameters[index], {})
        state = {name: t.to(there.get(name, t).dtype) for name, t in state.items()}
        optimizer.state[parameters[index]].update(state)
"""
    meanings = {
        "op:load": "a saved state loaded in place",
        "op:load_assign": "a saved state loaded with assign=True",
    }

    @property
    @override
    def replaces_parameters(self) -> bool:
        return self.assign

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.loaded, at.stepped_partial = True, False
        if self.assign:
            at.renew()

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.changed_misfits()
        yield from at.unsaved_misfits()
        yield from at.saving_misfits()
        if self.assign and at.saved == "state_dict" and at.case.ties:
            yield (
                "load_state_dict(assign=True) unties parameters, in any model",
                "load with assign=False",
            )
        if self.assign and at.saved in ("get_state_dict", "stateful"):
            yield "set_state_dict and dcp.load have no assign", "load with assign=False"
        if "ignore_frozen_params" in at.saved_with and at.frozen != at.saved_frozen:
            yield (
                "a state without what was frozen is loaded where other parameters are",
                "torch.distributed.checkpoint asks for what is not frozen now: save again",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:load_assign" if self.assign else "op:load"
        yield from at.late_change()

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"load_state({'assign=True' if self.assign else ''})"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.load(assign=self.assign)

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        """Return what was saved last, again."""
        if "save_load" not in run.swarm:
            return ()
        lost: op.Lost | None = None
        if run.tape.chance(60):
            lost = "rebuild" if run.tape.chance(30) else "zero"
        return ops.restoring(lost, assign=run.tape.chance(50))


class CorruptState(op.Op, tag="corrupt_state", frozen=True, kw_only=True):
    """Zeroes every parameter and optimizer state in place, or builds model and optimizer anew.
    Learning rates are zero in either case, if a load brings them back.

    A model that is built anew has other initial values. With ``mesh`` it is on other data-parallel
    axes of the same ranks, ``(shard,)`` or ``(replicate, shard)``, and a checkpoint on disk comes
    to it: ``torch.distributed.checkpoint`` "handles load-time resharding which enables saving in
    one cluster topology and loading into another" (docs/source/distributed.checkpoint.md).
    """

    how: op.Lost = "zero"
    mesh: tuple[int, ...] = ()

    lane = "state"
    of_optimizer = True
    never = {"forward_to_backward": MODIFIED}
    looks = ("corrupted",)
    sources = """
def zero(model, *optimizers):
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        for state in (state for each in optimizers for state in each.state.values()):
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()

def lose_rates(*optimizers):
    for group in (group for each in optimizers for group in each.param_groups):
        group["lr"] = 0 * group["lr"]

def set_scale(scaler, scale):  # without a state dict
    scaler.scale(torch.ones((), device=device))  # it has one from now on
    scaler.update(scale)
"""
    meanings = {
        "op:corrupt": "parameters and optimizer state zeroed",
        "op:rebuild": "model and optimizer built anew",
        "op:other_mesh": "model and optimizer built anew on another mesh, for a checkpoint",
    }

    @property
    @override
    def rebuilds(self) -> tuple[int, ...] | None:
        return self.mesh if self.how == "rebuild" else None

    @property
    @override
    def wants_sharded(self) -> bool:
        return self.rebuilds is None

    @override
    def follow(self, at: op.ScheduleState) -> None:
        if self.rebuilds is not None:
            at.rebuild(self.rebuilds)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"op:{'corrupt' if self.rebuilds is None else 'rebuild'}"
        yield from at.late_change()
        if at.case.on(self.mesh).mesh != at.case.mesh:
            yield "op:other_mesh"

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.changed_misfits()
        yield from at.unsaved_misfits()
        if not self.mesh:
            return
        if self.rebuilds is None:
            yield "zeroed parameters on another mesh", 'use how="rebuild"'
        if at.saved != "dcp" and "full_state_dict" not in at.saved_with:
            yield (
                "copied state dicts are loaded on another mesh than they were copied on",
                'save via "dcp", which reshards, or whole tensors',
            )
        ranks = at.case.mesh.data_size
        if len(self.mesh) > 2 or math.prod(self.mesh) != ranks:
            yield (
                f"{list(self.mesh)} is no mesh of the {ranks} data-parallel ranks",
                "give (shard,) or (replicate, shard): every rank keeps its data",
            )
        yield from at.mesh_misfits(self.mesh)

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"corrupt_state({self.how!r}{f', mesh={self.mesh}' if self.mesh else ''})"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        if self.rebuilds is None:
            return scope.states.zero()
        return [*scope.rebuilt(self.rebuilds), *scope.states.lose_rates()]

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        if self.rebuilds is None:
            super().run(trainer, index)
        else:
            trainer.rebuild(index, self.rebuilds)
            trainer.execute(trainer.engine.scope.states.lose_rates())
