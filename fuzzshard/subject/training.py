"""Training one model on one rank: the plain one, or the parallelised one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map

from fuzzshard.engines.registry import ENGINES
from fuzzshard.engines.rounding import Shake, largest
from fuzzshard.program.run import execute
from fuzzshard.subject import resume
from fuzzshard.subject.compare import LAST_BITS
from fuzzshard.subject.functions import Function, SubjectError, blaming, call
from fuzzshard.subject.operators import Operators
from fuzzshard.subject.record import Forwards, Record, random_state, seed_everything
from fuzzshard.subject.statements import prepare_lines
from fuzzshard.subject.steps import (
    average,
    floats,
    mean_of_squares,
    outputs_of,
    recorded_inputs,
    usual_optimizer,
    usual_step,
)
from fuzzshard.subject.subject import Training
from fuzzshard.subject.vary import aliases

T = TypeVar("T", bound=torch.Tensor)


@dataclasses.dataclass(kw_only=True)
class Trainer:
    """Trains one model of a subject, plain or parallelised, and keeps what is seen of it.

    ``dtype`` replaces that of floating tensors. ``alone`` trains the plain model on the data of
    this rank only; ``drops_out`` is False to train without dropout. The ``module`` ``is_plain``
    if nothing has parallelised it; ``plain_name`` gives the names in the plain model, and
    ``rebuild`` makes the module anew. ``operators`` keeps those of the last step, in which
    each rank trains on its own data in both models. ``where`` says what is being done, for the
    report of an exception.
    """

    functions: dict[str, Function]
    training: Training
    device: torch.device
    dtype: torch.dtype | None = None
    shake: Shake | None = None
    alone: bool = False
    drops_out: bool = True
    is_plain: bool = True
    plain_name: Callable[[str], str] = str
    rebuild: Callable[[], nn.Module] | None = None
    operators: Operators | None = None
    module: nn.Module = dataclasses.field(init=False)
    record: Record = dataclasses.field(init=False, default_factory=Record)
    forwards: Forwards | None = dataclasses.field(init=False, default=None)
    where: str = dataclasses.field(init=False, default="")
    _frozen_at_first: set[str] = dataclasses.field(init=False, default_factory=set)

    def data_rank(self, step: int) -> int:
        """Return this rank's number among those that get data of their own in a step."""
        return self.training.mesh_of(step).data_rank(dist.get_rank())

    def build(self) -> nn.Module:
        """Return what is trained, plain: what ``build`` gives, or one module of it.

        It is on the device unless it has no values.
        """
        model, only = self._whole(), self.training.variation.only
        try:
            model = model.get_submodule(only)
        except AttributeError as error:
            raise SubjectError("build", f"gives a model without {only}") from error
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise SubjectError("build", "gives a model without trainable parameters")
        return model

    def _whole(self) -> nn.Module:
        seed_everything(self.training.seed)
        size = self.training.variation.size
        with blaming("smaller" if size else "build"):
            build = self.functions["smaller" if size else "build"]
            model = call(build, size) if size else call(build)
        if not isinstance(model, nn.Module):
            raise SubjectError("build", f"returned {type(model).__name__} and no nn.Module")
        execute(prepare_lines(self.training.variation), {"model": model})
        if self.dtype is not None:
            model = call(model.to, self.dtype)
        return model if on_meta(model) else call(model.to, self.device)

    def materialize(self, model: nn.Module) -> nn.Module:
        """Give a model on the meta device memory, and the values of ``reset_parameters`` of its
        modules and of its own ``init_weights``.
        """
        call(model.to_empty, device=self.device)
        seed_everything(self.training.seed)
        of_all: Any = getattr(model, "init_weights", None)
        with torch.no_grad(), blaming("build gives a model whose initialisation"):
            for module in model.modules():
                reset: Any = getattr(module, "reset_parameters", None)
                own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
                if callable(reset):
                    call(reset)
                elif own and not callable(of_all):
                    raise SubjectError(
                        "build",
                        f"gives a model on the meta device without init_weights, and "
                        f"{type(module).__name__} has no reset_parameters; build it on the CPU",
                    )
            if callable(of_all):
                call(of_all)
        return model

    def batch(self, step: int, microbatch: int, data_rank: int) -> Any:
        """Return the batch of a rank, on the device.

        For a module that is cut out: what it gets when the whole plain model gets that batch.
        """
        number = step * self.training.microbatches + microbatch
        data_size = self.training.mesh_of(step).data_size
        with blaming("inputs"):
            batch = call(self.functions["inputs"], number, data_rank, data_size)

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            leaf = leaf.to(self.device)
            return leaf.to(self.dtype) if self.dtype and leaf.is_floating_point() else leaf

        batch = tree_map(move, batch)
        if not (only := self.training.variation.only):
            return batch
        whole = self._whole()
        if on_meta(whole):
            self.materialize(whole)
        with blaming("the plain model, given this batch,"):
            seed_everything(self.training.seed + number)
            inputs = recorded_inputs(whole, only, batch)
        if inputs is None:
            raise SubjectError("build", f"returns a model whose forward does not call {only}")
        return inputs

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a batch; raises :class:`SubjectError` for no scalar."""
        outputs = outputs_of(model, batch)
        if "loss" not in self.functions and not floats(outputs):
            raise SubjectError("build", "gives a model without floating-point outputs")
        value = call(self.functions.get("loss", mean_of_squares), outputs, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise SubjectError("loss", "gave no scalar tensor")
        return value.reshape(())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return what updates the parameters of ``model``."""
        optimizer = call(self.functions.get("optimizer", usual_optimizer), model.parameters())
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SubjectError(
                "optimizer", f"returned {type(optimizer).__name__} and no torch.optim.Optimizer"
            )
        return optimizer

    def weight(self, batch: Any) -> float:
        """Return the weight of a batch in the mean over all batches of a step."""
        with blaming("loss_weight"):
            return float(call(self.functions["loss_weight"], batch))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters by their plain names, those with several names once for each."""
        return self._by_plain_name(self.module.named_parameters(remove_duplicate=False))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers, likewise."""
        return self._by_plain_name(self.module.named_buffers(remove_duplicate=False))

    def _by_plain_name(self, named: Iterable[tuple[str, T]]) -> dict[str, T]:
        return {self.plain_name(name): tensor for name, tensor in named}

    @contextlib.contextmanager
    def whole(self, *, gradients: bool) -> Iterator[None]:
        """Have parameters registered whole where engines flatten them."""
        with contextlib.ExitStack() as stack:
            for engine in ENGINES.values():
                stack.enter_context(engine.whole_parameters(self.module, gradients=gradients))
            yield

    def note_state(self, step: int) -> None:
        """Keep parameters and buffers."""
        with torch.no_grad(), self.whole(gradients=False):
            parameters = self.parameters()
            self.record.add(step, "parameters", parameters)
            self.record.aliases = aliases(parameters)
            frozen = {n for n, p in parameters.items() if not p.requires_grad}
            self._frozen_at_first = frozen if step < 0 else self._frozen_at_first
            self.record.frozen |= frozen
            self.record.switched |= frozen ^ self._frozen_at_first
        self.record.add(step, "buffers", self.buffers())

    def note_gradients(self, step: int) -> None:
        """Keep gradients, whole ones where all ranks have one."""
        with torch.no_grad(), self.whole(gradients=True):
            gradients = {name: p.grad for name, p in self.parameters().items() if p.requires_grad}
            here = sorted(name for name, gradient in gradients.items() if gradient is not None)
            there = everywhere(here)
            for name, gradient in gradients.items():
                if isinstance(gradient, DTensor):
                    ranks = gradient.device_mesh.mesh.flatten().tolist()
                    if not all(name in there[rank] for rank in ranks):
                        gradients[name] = gradient.to_local()
            self.record.add(step, "gradients", gradients)

    def train(self) -> None:
        """Train for all steps, and keep what is seen.

        On the plain model an exception says that what the user gave cannot be used.
        """
        if not self.is_plain:
            return self._train()
        with blaming("the plain model", lambda: self.where):
            return self._train()

    def _train(self) -> None:
        training = self.training
        self.where = "before training"
        self.note_state(-1)
        if self.shake:
            for name, parameter in self.module.named_parameters():
                self.shake.apply(parameter, name)
        forwards = self._watched()
        optimizer = self.optimizer(self.module)
        self.record.stale_optimizer = self._is_stale(optimizer)
        with contextlib.ExitStack() as stack:
            if not self.drops_out:
                stack.enter_context(without_dropout())

            def before_update(
                updating: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
            ) -> tuple[Any, dict[str, Any]] | None:
                closure = kwargs.get("closure", *args[1:2])
                if updating is not optimizer:
                    self.record.stale_optimizer |= self._is_stale(updating)
                elif callable(closure):
                    noting = self._noting(closure, forwards.step, updating)
                    others = {key: value for key, value in kwargs.items() if key != "closure"}
                    return (args[0], noting, *args[2:]), others
                else:
                    self._before_update(forwards.step, updating)
                return None

            stack.callback(register_optimizer_step_pre_hook(before_update).remove)
            for step in range(training.steps):
                if 0 < step == training.resume:
                    optimizer = self._resumed(step, optimizer, stack)
                    forwards = self._watched() if self.rebuild else forwards
                self.record.num_updates.append(0)
                self._step(step, forwards, optimizer)
                forwards.end_step()
                self.note_state(step)
        self.where = "after training, state dict"
        options = StateDictOptions(full_state_dict=True)
        state = (
            call(self.module.state_dict)
            if self.is_plain
            else call(get_model_state_dict, self.module, options=options)
        )
        tensors = [(k, v) for k, v in state.items() if isinstance(v, torch.Tensor)]
        self.record.add(training.steps - 1, "state dict", self._by_plain_name(tensors))

    def _watched(self) -> Forwards:
        forwards = Forwards(
            self.module, self.plain_name, self.record, self.training.seed, self.device
        )
        self.forwards = forwards
        return forwards

    def _resumed(
        self, step: int, optimizer: torch.optim.Optimizer, stack: contextlib.ExitStack
    ) -> torch.optim.Optimizer:
        """Go on in the mesh of a step, and return the optimizer there.

        A model that is parallelised is saved and loaded, with model and optimizer made anew.
        """
        goes_on = of_ranks(self.training.mesh_of(step).size)
        if self.rebuild is None:
            stack.enter_context(goes_on)
            return optimizer
        with resume.shared_folder(_own_group()) as folder:
            self.where = f"before step {step}, save"
            before = self._states(optimizer)
            checkpoint = resume.Checkpoint(self.functions, self.training.full_state_dicts)
            group_number = _own_group().rank() // dist.get_world_size()
            checkpoint.save(self.module, optimizer, folder / str(group_number))
            dist.barrier(_own_group())
            stack.enter_context(goes_on)
            self.where = f"before step {step}, build anew"
            self.module = self.rebuild()
            optimizer = self.optimizer(self.module)
            self.where = f"before step {step}, load"
            checkpoint.load(self.module, optimizer, folder / "0")
        self.record.lost = resume.lost(before, self._states(optimizer))
        return optimizer

    def _states(self, optimizer: torch.optim.Optimizer) -> resume.States:
        found = resume.states(self.module, optimizer, self.plain_name)
        if self.record.draws:
            found["random state"] = random_state(self.device)
        return found

    def _options(self, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
        names = {parameter: name for name, parameter in self.parameters().items()}
        return {
            names[parameter]: {k: resume.copied(v) for k, v in group.items() if k != "params"}
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in names
        }

    def _is_stale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has no parameter that the model has, but what it had before."""
        there = {id(parameter) for parameter in self.module.parameters()}
        groups = (group["params"] for group in optimizer.param_groups)
        return not any(id(parameter) in there for group in groups for parameter in group)

    def _noting(
        self, closure: Callable[[], Any], step: int, updating: torch.optim.Optimizer
    ) -> Callable[[], Any]:
        """A closure that makes the gradients of an update, which are seen after its first call."""
        calls: list[Any] = []

        def noting() -> Any:
            calls.append(call(closure))
            if len(calls) == 1:
                self._before_update(step, updating)
            return calls[-1]

        return noting

    def _before_update(self, step: int, updating: torch.optim.Optimizer) -> None:
        self.record.num_updates[-1] += 1
        if "train_step" not in self.functions:
            self.where = f"step {step}, update"
            if self.is_plain and not self.alone and not self._joins(step):
                average([*self.module.parameters()])
        if self.record.num_updates[-1] == 1:
            self.note_gradients(step)
            self.record.options[step] = self._options(updating)
            self.record.unsharded |= not self.record.stale_optimizer and self._is_stale(updating)
        if self.shake:
            self._shake_gradients(self.shake, step)

    @torch.no_grad()
    def _shake_gradients(self, shake: Shake, step: int) -> None:
        """Change gradients by what rounding leaves of sums that cancel.

        Adam makes a whole step of such a rest, in one direction or the other. What is zero had
        nothing to add up.
        """
        for name, parameter in self.module.named_parameters():
            if (gradient := parameter.grad) is not None and not gradient.is_sparse:
                shaken = shake.of_sum(gradient, (name, step), LAST_BITS, largest(gradient))
                gradient.copy_(torch.where(gradient == 0, gradient, shaken))

    def _recorded(self, step: int) -> Operators | None:
        return self.operators if step + 1 == self.training.steps else None

    def _joins(self, step: int) -> bool:
        """Return whether a step is taken on the batches of all ranks as one."""
        is_whole = self.is_plain and not self.alone and not self._recorded(step)
        return self.training.global_batch and is_whole

    def _step(self, step: int, forwards: Forwards, optimizer: torch.optim.Optimizer) -> None:
        count, own = self.training.microbatches, self.functions.get("train_step")
        recorded, joins = self._recorded(step), self._joins(step)
        of_all = joins or (own and self.is_plain and not self.alone and not recorded)
        everyone = range(self.training.mesh_of(step).data_size)
        ranks = everyone if of_all else [self.data_rank(step)]
        numbered = {r * count + i: self.batch(step, i, r) for r in ranks for i in range(count)}
        if joins:
            numbered = {0: joined([*numbered.values()])}
        batches = forwards.begin_step(step, numbered)
        shares = [] if own else self._shares(list(numbered.values()))
        changes = self.training.variation
        changed = {"evaluates": changes.evaluates, "unsyncs": changes.unsynced}
        alone = of_ranks(1) if joins else contextlib.nullcontext()
        with recorded.of(forwards) if recorded else alone:
            if own is None:
                usual_step(self.module, optimizer, batches, self._seen_loss, shares, **changed)
                return
            self.where = f"step {step}, train_step"
            call(own, self.module, optimizer, batches)
        if self.is_plain and not self.record.num_updates[-1]:
            raise SubjectError(
                "train_step",
                "did not call step() of the optimizer that it is given; if you make one of "
                "your own, return it from a function for --optimizer",
            )

    def _seen_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Keep the loss of the batch that was taken last."""
        assert self.forwards is not None
        step, number, trains = self.forwards.step, self.forwards.latest, torch.is_grad_enabled()
        index = number % self.training.microbatches
        self.where = f"step {step}, forward {index}" if trains else f"step {step}, evaluation"
        loss = self.loss(model, batch)
        if trains:
            self.record.add(step, "loss", {"loss": loss}, number)
            self.where = f"step {step}, backward {index}"
        return loss

    def _shares(self, batches: Sequence[Any]) -> list[float]:
        """Return the factors of the losses of this rank, in a mean over all ranks."""
        if "loss_weight" not in self.functions or not self.is_plain:
            return [1 / len(batches)] * len(batches)
        weights = [self.weight(batch) for batch in batches]
        total = torch.tensor(sum(weights), dtype=torch.float64).to(self.device)
        if not self.alone:
            dist.all_reduce(total)
            total /= dist.get_world_size()
        return [weight / total.item() for weight in weights]


@functools.cache
def _own_group() -> dist.ProcessGroup:
    """Return a group in which all ranks meet before an update.

    Where another rank is still in a collective of the user's, this one waits: in the same group
    the two would take each other's data.
    """
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def everywhere(here: Any) -> list[Any]:
    """Return what all ranks give, whatever groups of them do."""
    found: list[Any] = [None] * _own_group().size()
    dist.all_gather_object(found, here, group=_own_group())
    return found


@functools.cache
def groups_of(size: int) -> list[Any]:
    """Return groups of as many neighbouring ranks, which all ranks have to make together."""
    every = _own_group().size()
    if size == every:
        return [dist.group.WORLD]
    return [dist.new_group([*range(at, at + size)]) for at in range(0, every, size)]


@contextlib.contextmanager
def of_ranks(size: int) -> Iterator[None]:
    """Have what runs on this rank be in a world of ``size`` ranks: if there are more, groups of
    them do the same.
    """
    world, own = dist.group.WORLD, _own_group()
    distributed_c10d._update_default_pg(groups_of(size)[own.rank() // size])
    try:
        yield
    finally:
        distributed_c10d._update_default_pg(world)


def joined(batches: Sequence[Any]) -> Any:
    """Return batches as one: tensors are joined along their first dimension, all else is equal."""

    def join(*leaves: Any) -> Any:
        if isinstance(leaves[0], torch.Tensor) and leaves[0].dim():
            return torch.cat(leaves)
        if any(bool(leaf != leaves[0]) for leaf in leaves):
            raise ValueError("what is no tensor of rows is not equal in all of them")
        return leaves[0]

    try:
        return tree_map(join, *batches)
    except (RuntimeError, ValueError) as error:
        told = f"gives batches that --global-batch cannot join, pad them: {error}"
        raise SubjectError("inputs", told) from error


def on_meta(model: nn.Module) -> bool:
    """Return whether a model has no values yet."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def draws_by_dtype(device: torch.device) -> bool:
    """Return whether a dropout on ``device`` draws other values in another dtype.

    A kernel of CUDA draws as many numbers in a go as its vectors have elements
    (``aten/src/ATen/native/cuda/Dropout.cu``).
    """
    return device.type == "cuda"


def without_dropout() -> contextlib.AbstractContextManager[None]:
    """Have the functions of :mod:`torch.nn.functional` drop nothing; modules call these."""
    attention = functional.scaled_dot_product_attention

    def identity(input: Any, *_: Any, **__: Any) -> Any:
        return input

    def attend(*args: Any, dropout_p: float = 0.0, **kwargs: Any) -> Any:
        positional = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return attention(*positional, **kwargs)

    dropouts = (name for name in vars(functional) if "dropout" in name)
    replaced: dict[str, Any] = dict.fromkeys(dropouts, identity)
    replaced["scaled_dot_product_attention"] = attend
    patch: contextlib.AbstractContextManager[None] = mock.patch.multiple(functional, **replaced)
    return patch
