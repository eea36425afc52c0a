"""Saving, losing and loading what a training run has, as statements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuzzshard.analysis.dtypes import grad_dtypes_set
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.parts.op import StateOption, Via
from fuzzshard.parts.ops.states import SaveState, is_of_rank0
from fuzzshard.parts.statements import call_lines, indented

if TYPE_CHECKING:
    from fuzzshard.program.scope import Scope


@dataclasses.dataclass(frozen=True)
class States:
    """Parameters, buffers and the state of the optimizer; those of the plain model need no file to
    be remembered.
    """

    scope: Scope

    def save(self, save: SaveState) -> list[str]:
        """Save model and optimizer; to a file perhaps while what follows runs."""
        called, via, options = self.scope.called, save.via, save.options
        beside, plain = self._states_beside(plain=False), self._states_beside(plain=True)
        each = [self._of_model(options), *(f"{each}.state_dict()" for each in self._optimizers)]
        copies = call_lines("saved = copied", [f"[{', '.join([*each, *plain])}]"])
        if via == "state_dict":
            own = call_lines("saved = copied", [f"[{', '.join([*each, *beside])}]"])
            return self.scope.either(copies, own)
        given = self._options_lines(options)
        if via == "get_state_dict":
            states = self._whole(
                f"get_state_dict({called}, {self._given}{', options=options' if given else ''})",
                options,
            )
            own = call_lines("saved = copied", [f"[*{states}{', '.join(['', *beside])}]"])
            return self.scope.either(copies, [*given, *own])
        states = self._on_disk(via, options)
        saves = [f"dcp.save({states}, {self._where})"]
        if save.asynchronous:
            saves = save.async_lines(states)
        return self.scope.either(copies, ["folder = new_folder()", *given, *saves])

    def _on_disk(self, via: Via, options: Sequence[StateOption]) -> str:
        """Write what ``dcp`` gets: what is asked for by name, or the objects themselves."""
        states = self._whole(self._all_states(options), options)
        if via == "stateful":
            named = [("model", self.scope.called), *((name, name) for name in self._optimizers)]
            states = f"{{{', '.join(f'{name!r}: {each}' for name, each in named)}}}"
        return self._with_beside(states.replace("'", '"'))

    def _of_model(self, options: Sequence[StateOption]) -> str:
        """Write the state dict of the plain model, as the ``options`` say."""
        called = self.scope.called
        state = f"{called}.state_dict()"
        return f"trainable({called})" if "ignore_frozen_params" in options else state

    @staticmethod
    def _whole(states: str, options: Sequence[StateOption]) -> str:
        return f"whole({states})" if "full_state_dict" in options else states

    def _options_lines(self, options: Sequence[StateOption]) -> list[str]:
        """Set ``options``; those of stages name states: they have groups of parameters of their
        own.
        """
        given = {f"{name}=True": None for name in options if name != "not_strict"}
        if self.scope.engine.in_stages:
            given["flatten_optimizer_state_dict=True"] = None
        if "not_strict" in options:
            given["strict=False"] = None
        return call_lines("options = StateDictOptions", [*given]) if given else []

    @property
    def _optimizers(self) -> tuple[str, ...]:
        """Return their variables."""
        return tuple(self.scope.case.optimizer.each)

    def _all_states(self, options: Sequence[StateOption]) -> str:
        """Write the states as ``torch.distributed.checkpoint`` takes them."""
        given = ", options" if self._options_lines(options) else ""
        return f"states({self.scope.called}, {self._given}{given})"

    @property
    def _given(self) -> str:
        """Write the optimizers as it takes them."""
        names = ", ".join(self._optimizers)
        return names if len(self._optimizers) == 1 else f"[{names}]"

    @property
    def _where(self) -> str:
        """Say where: slices along the pipeline each save for themselves, unless they are stages of
        one model, or tensor parallelism needs all ranks.
        """
        mesh, in_stages = self.scope.case.mesh, self.scope.engine.in_stages
        if self.scope.names.within:
            group = "everyone" if in_stages or mesh.tensor else "group"
            return f"checkpoint_id=folder, process_group={group}"
        if in_stages or not mesh.saves_in_slices:
            return "checkpoint_id=folder"
        return "checkpoint_id=f\"{folder}/{world_mesh.get_local_rank('pp')}\", process_group=group"

    def load(self, *, assign: bool) -> list[str]:
        """Load both, as they were saved."""
        events, now = self.scope.event_lines, self.scope.now
        if now.saved == "state_dict":
            copies = functools.partial(self._copies, assign=assign)
            return [*self.scope.either(copies(plain=True), copies(plain=False)), *events]
        sets = assign or self._sets_groups
        plain = self._copies(assign=False, plain=True, fills=not sets)
        if now.saved == "get_state_dict":
            own = self._set_kept()
        elif now.saved == "stateful":
            own = [f"dcp.load({self._on_disk('stateful', ())}, {self._where})"]
        else:
            own = self._files(assign=assign, sets=sets)
        return [*self.scope.either(plain, own), *events]

    def _set_kept(self) -> list[str]:
        """Set what ``get_state_dict`` has returned; where rank 0 is to broadcast it, the others
        have none.
        """
        options, called = self.scope.now.saved_with, self.scope.called
        beside = [f"{name}_state" for name in self._beside]
        given = self._options_lines(options)
        into = ", ".join(["model_state", "optimizer_state", *beside])
        lines = [*given, f"{into} = copied(saved)"]
        if "broadcast_from_rank0" in options:
            lines += ["if dist.get_rank() > 0:", "    model_state, optimizer_state = {}, {}"]
        arguments = [called, self._given, "model_state_dict=model_state"]
        arguments += ["optim_state_dict=optimizer_state", *(["options=options"] if given else [])]
        lines += call_lines("set_state_dict", arguments)
        return [*lines, *self._load_beside(plain=False)]

    def _copies(self, *, assign: bool, plain: bool, fills: bool = False) -> list[str]:
        """Load copies, or fill the tensors that there are, as ``dcp.load`` does."""
        beside = [f"{name}_state" for name in self._beside]
        states = {name: f"{name}_state" for name in self._optimizers}
        into = ", ".join(["model_state", *states.values(), *beside])
        partial = "ignore_frozen_params" in self.scope.now.saved_with
        given = "of_trainable({0}, {1})" if partial else "{1}"
        load = "fill_state({0}, {1})" if fills else f"{{0}}.load_state_dict({given})"
        return [
            f"{into} = copied(saved)",
            f"{self.scope.called}.load_state_dict(model_state{self._how(assign=assign)})",
            *(self._retyped if assign else []),
            *(self.scope.renewed if assign else []),
            *(load.format(name, state) for name, state in states.items()),
            *self._load_beside(plain=plain),
        ]

    def _how(self, *, assign: bool) -> str:
        partial = "ignore_frozen_params" in self.scope.now.saved_with
        return f"{', assign=True' if assign else ''}{', strict=False' if partial else ''}"

    def _files(self, *, assign: bool, sets: bool) -> list[str]:
        """Load into the tensors of the states, or into copies that are set then.

        The learning rate is no tensor: "Users must call `load_state_dict` on the root module to
        ensure load post-processing and non-tensor data properly propagates" (``dcp.load``).
        """
        called, options = self.scope.called, self.scope.now.saved_with
        states = self._whole(self._all_states(options), options)
        state = self._with_beside(f"copied({states})" if assign else states)
        lines = self._options_lines(options)
        given = ", options=options" if lines else ""
        set_model = f'set_model_state_dict({called}, state["model"]{given})'
        set_optimizer = (
            f'set_optimizer_state_dict({called}, {self._given}, state["optimizer"]{given})'
        )
        only_rank0 = ["if dist.get_rank() > 0:", '    state["model"], state["optimizer"] = {}, {}']
        return [
            *lines,
            f"state = {state}",
            f"dcp.load(state, {self._where})",
            *(only_rank0 if "broadcast_from_rank0" in options else []),
            *([set_model] if assign or options else []),
            *([set_optimizer] if sets else []),
        ]

    @property
    def _retyped(self) -> list[str]:
        """Set ``grad_dtype`` again of parameters that are other tensors now; those of groups
        inherit it ("An explicit grad_dtype [...] is inherited by a parameter that
        load_state_dict(assign=True) registers without one", ``fully_shard``).
        """
        scope = self.scope
        case, owners = scope.case, inferred(scope.case).owners
        lines = [line for op in case.schedule if op.retypes for line in op.settings(scope)]
        if not scope.shards or not lines:
            return lines
        only = f"if {scope.called} is reference:"
        return [
            *([only, *indented(lines)] if scope.shared else []),
            *(
                line
                for fqn, dtype in grad_dtypes_set(case).items()
                if owners[fqn] is UNMANAGED
                for line in scope.attribute_lines(
                    fqn, f"grad_dtype = {dtype and f'torch.{dtype}'}"
                )
            ),
        ]

    @property
    def _beside(self) -> tuple[str, ...]:
        return self.scope.case.optimizer.beside_states

    def _states_beside(self, *, plain: bool) -> list[str]:
        """Take their states; that of a scaler is one number, of which the plain model asks."""
        own = [f"{name}.state_dict()" for name in self._beside]
        return ["scaler.get_scale()" if plain and "scaler" in each else each for each in own]

    def _load_beside(self, *, plain: bool) -> list[str]:
        """Load what that returned."""
        own = "{0}.load_state_dict({0}_state)"
        how = {"scaler": "set_scale({0}, {0}_state)"} if plain else {}
        return [how.get(name, own).format(name) for name in self._beside]

    def _with_beside(self, states: str) -> str:
        """Add what ``dcp`` asks for its state and gives it back."""
        return states + "".join(f' | {{"{name}": {name}}}' for name in self._beside)

    def take(self, options: Sequence[StateOption] | None, *, inference: bool) -> list[str]:
        """Keep the state dict, or a copy of what is asked for with ``options``."""
        lines = [f"taken = {self.scope.called}.state_dict()"]
        if options is not None:
            given = self._options_lines(options)
            asked = ", options=options" if given else ""
            state = self._whole(f"get_model_state_dict({self.scope.called}{asked})", options)
            plain = f"copied({self._of_model(options)})"
            if is_of_rank0(options):
                plain = f"{plain} if dist.get_rank() == 0 else {{}}"
            taken = f"copied({state})"
            if "cpu_offload" in options:
                taken = f"{{name: tensor.to(device) for name, tensor in {taken}.items()}}"
            own = [*given, f"taken = {taken}"]
            lines = self.scope.either([f"taken = {plain}"], own)
        return ["with torch.inference_mode():", *indented(lines)] if inference else lines

    def zero(self) -> list[str]:
        """Zero parameters and the state of the optimizer in place."""
        names = ", ".join([self.scope.called, *self._optimizers])
        lost = ["set_scale(scaler, 1.0)"] if self.scope.case.optimizer.scaler else []
        return [f"zero({names})", *self.lose_rates(), *lost, *self.scope.event_lines]

    def lose_rates(self) -> list[str]:
        """Lose the learning rates, which are no tensors, where a load brings them back."""
        return [f"lose_rates({', '.join(self._optimizers)})"] if self._sets_groups else []

    @property
    def _sets_groups(self) -> bool:
        """Whether loading what was saved, perhaps in place, sets more than tensors."""
        now = self.scope.now
        scheduled = bool(self.scope.case.optimizer.scheduler)
        return scheduled or bool(now.saved_with) or now.saved != "dcp"
