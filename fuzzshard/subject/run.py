"""A check on one rank: train the plain model and the parallelised one, and compare."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from fuzzshard.case.paths import is_within
from fuzzshard.engines.rounding import Shake
from fuzzshard.instruments import STREAMS, works
from fuzzshard.instruments.streams.watching import watching
from fuzzshard.oracles.bound import OF_NOISE, OF_NOISE_IN_HALF
from fuzzshard.oracles.race import describe
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.engine_script import engine_script
from fuzzshard.program.run import execute
from fuzzshard.subject import resume
from fuzzshard.subject.compare import (
    LAST_BITS,
    SAME_IN_FLOAT64,
    Comparison,
    Skip,
    compare,
    limits_of,
    moment,
)
from fuzzshard.subject.functions import SubjectError, blaming, call, load
from fuzzshard.subject.likeness import Likeness, Seen, closeness, near, repeats
from fuzzshard.subject.names import PlainNames
from fuzzshard.subject.operators import (
    Operators,
    align,
    complete,
    first_operator,
    order,
    parts,
    side_by_side,
    twice,
)
from fuzzshard.subject.record import Place, Record, kept, seed_everything
from fuzzshard.subject.report import Difference, FirstOperator, Kind, TrainingReport, module_of
from fuzzshard.subject.statements import compile_lines, recompute_lines, wrap_lines
from fuzzshard.subject.steps import leaves
from fuzzshard.subject.subject import IN_FLOAT64, Outline, Subject, Training
from fuzzshard.subject.training import (
    Trainer,
    draws_by_dtype,
    everywhere,
    groups_of,
    of_ranks,
    on_meta,
)
from fuzzshard.subject.vary import blocks_of, outline, present

MOST_SHAKEN = 8
"""How often values are shaken to explain a difference, in turns by opposites."""

MOST_RACES = 12
"""How many accesses without order a report names."""

MOST_NAMES = 3
"""How many tensors a limit names."""

IGNORED = -100
"""What losses of torch leave out by default (``ignore_index``)."""

MOST_ELEMENTS = 1 << 24
"""A larger tensor is not sent to other ranks to say what it looks like."""

PARALLELIZING = 1 << 30
"""What is added to the seed while parallelize runs: a seed that the user sets is another one."""

STALE = "the optimizer has none of the model's parameters: was it made before parallelize?"

UNSHARDED = (
    "the model has other parameters than the optimizer when that updates: are they still "
    "unsharded (set_reshard_after_backward)? Then the next forward does not see the update"
)

OF_GROUPS = "do its groups go by what wrapping changes, names or dims?"

PER_MICROBATCH = "for each microbatch? the plain model gets those of all ranks"

SCALARS = "support scalar parameters"
"""What FSDP's errors say that refuse such parameters (_fsdp_init.py, _init_utils.py)."""


class _RefusedError(Exception):
    """An engine that nobody chose for this model says that it takes no such model."""


class Check:
    """Checks one subject in one way of training; every rank of the mesh makes the same calls.

    ``where`` says what is being done. Raises :class:`SubjectError` for what cannot be used, and
    lets exceptions of the parallelised model through.
    """

    def __init__(self, subject: Subject, training: Training, device: torch.device) -> None:
        self.training = training
        self.device = device
        self.functions = load(subject.of_one_module if training.variation.only else subject)
        self.names = subject.names
        shapes = [training.mesh_of(step) for step in (0, training.resume)]
        self._meshes = {str(s): _mesh(device.type, *s.axes.items()) for s in shapes}
        self.limits: list[str] = []
        self._lost: tuple[str, ...] = ()
        self.races: tuple[str, ...] = ()
        self.side_by_side: tuple[FirstOperator, ...] = ()
        self.warned: list[str] = []
        self.blocks: tuple[str, ...] = ()
        self.outline = Outline()
        self._broadcasts_buffers = False
        self._seeds: list[int] = []
        self._finest: torch.dtype | None = None
        self.skip: dict[Kind, Skip] = {}
        self._usual = self._trainer = Trainer(
            functions=self.functions,
            training=training,
            device=device,
            drops_out=not training.global_batch,
        )
        if training.global_batch:
            groups_of(1)
            self.skip |= {"outputs": "not due", "loss": "not due"}
            self.limits.append(
                "trained without dropout, and outputs and losses are not compared: the plain "
                "model gets the batches of all ranks as one"
            )

    @property
    def where(self) -> str:
        """What the training that runs, or ran last, is doing."""
        where, forwards = self._trainer.where, self._trainer.forwards
        if forwards and where.endswith("train_step"):
            where += f", {forwards.number} forward{'s' * (forwards.number != 1)} begun"
        where += f", in {forwards.inside}" if forwards and forwards.inside else ""
        return where + (IN_FLOAT64 if self._trainer.dtype is torch.float64 else "")

    def run(self) -> TrainingReport:
        """Train, compare and say what differs."""
        with of_ranks(self.training.mesh.size):
            return self._run()

    def _run(self) -> TrainingReport:
        self._check_inputs()
        self._check_precision()
        warned: list[str] = []
        with noted_warnings(warned):
            plain = self._train_plain()
        if self.training.repeat:
            unequal = compare(plain, self._train_plain(), None, "", {}).first
            if (place := self._earliest(unequal)) is not None:
                return self._not_judged(
                    "the plain model trained twice differs from itself: "
                    f"{place.kind} {place.name}, step {place.step}; a check needs a model that "
                    "computes the same twice"
                )
        try:
            with noted_warnings(self.warned, known=warned):
                parallel = self._train_watched(plain)
        except _RefusedError as error:
            return self._not_judged(str(error))
        if self.training.global_batch and any(everywhere(parallel.draws)):
            return self._not_judged(
                "the model draws random numbers, and not by functions of torch that drop out: for "
                "one batch of all ranks it draws others"
            )
        self._skip_what_is_not_due(plain)
        self._say_what_is_unseen(parallel)
        lost = itertools.chain(*everywhere(parallel.lost))
        self._lost = tuple(dict.fromkeys(lost))
        comparison = compare(plain, parallel, None, "", self.skip)
        structural = everywhere(self._structural_difference(plain, parallel))
        if (first := next(filter(None, structural), None)) is not None:
            return self._checked(comparison, first)
        if not self._everywhere(comparison.is_bitwise):
            coarsest = _coarser(plain, parallel)
            comparison = self._compare_within_rounding(plain, parallel, coarsest)
            equal = self._everywhere(comparison.first is None)
            draw_apart = plain.dtypes != parallel.dtypes and draws_by_dtype(self.device)
            if not equal and self._everywhere(draw_apart):
                self.limits.append(
                    "without dropout, which on CUDA draws other values in another precision"
                )
                self._usual = self._new_trainer(drops_out=False)
                plain = self._train_plain()
                parallel = self._train_parallel(plain)
                comparison = self._compare_within_rounding(plain, parallel, coarsest)
            self._say_what_is_noise(comparison)
        if (place := self._earliest(comparison.first)) is None:
            return self._checked(comparison, self._other_weights(parallel))
        differs = everywhere(comparison.first == place)
        rank = differs.index(True) % self.training.mesh_of(place.step).size
        difference = self._difference(place, rank, plain, parallel)
        operator = self._first_operator(place, rank, self._finest or _coarser(plain, parallel))
        return self._checked(comparison, difference, operator)

    def _say_what_is_noise(self, comparison: Comparison) -> None:
        """Say what rounding alone changes by a large part, on some rank."""
        results = comparison.results.items()
        here = [p for p, result in results if result is None and p.kind not in self.skip]
        noise = sorted({f"{p.kind} {p.name}" for of_rank in everywhere(here) for p in of_rank})
        if noise:
            more = f" and {len(noise) - MOST_NAMES} more" * (len(noise) > MOST_NAMES)
            self.limits.append(
                f"rounding to {comparison.precision} alone changes some tensors by a large part, "
                f"which are not compared in such steps: {', '.join(noise[:MOST_NAMES])}{more}"
            )

    def _new_trainer(self, **changes: Any) -> Trainer:
        self._trainer = dataclasses.replace(self._usual, **changes)
        return self._trainer

    def _check_inputs(self) -> None:
        """Raise :class:`SubjectError` for batches and values that are not the same when made
        again.
        """
        trainer = self._trainer
        batch, again = (_digest(trainer.batch(0, 0, trainer.data_rank(0))) for _ in range(2))
        if batch != again:
            raise SubjectError("inputs", "gives another batch when it is called again; seed it")
        if self.training.mesh.data_size > 1 and len(set(everywhere(batch))) == 1:
            self.limits.append(
                "all ranks get equal batches, so that a missing reduction shows nowhere"
            )
        model = trainer.build()
        self.outline = outline(model)
        values = () if on_meta(model) else model.state_dict()
        if len(set(everywhere(_digest(values)))) > 1:
            raise SubjectError("build", "gives other values on other ranks; seed it")

    def _check_precision(self) -> None:
        """Raise :class:`SubjectError` for a model that cannot compute with coarser parameters.

        Policies cast parameters and inputs and leave buffers as they are: what multiplies the two
        has the coarser operands of one place meet the finer ones of another.
        """
        if not self.training.variation.param_dtype:
            return
        dtype = getattr(torch, self.training.variation.param_dtype)
        trainer = self._new_trainer(dtype=dtype)
        model = self._plain_model(self._usual)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        with blaming(f"the plain model with parameters of {name_of(dtype)}"), torch.no_grad():
            trainer.loss(model, trainer.batch(0, 0, trainer.data_rank(0)))

    def _plain_model(self, trainer: Trainer) -> nn.Module:
        model = trainer.build()
        return trainer.materialize(model) if on_meta(model) else model

    def _train_plain(self, **changes: Any) -> Record:
        trainer = self._new_trainer(**changes)
        trainer.module = self._plain_model(trainer)
        trainer.train()
        return trainer.record

    def _train_alone(self, without: str) -> dict[Place, torch.Tensor | None]:
        """What this rank's own data make of the plain model, without one of the functions."""
        functions = {field: given for field, given in self.functions.items() if field != without}
        return self._train_plain(functions=functions, alone=True).tensors

    def _train_parallel(self, plain: Record, **changes: Any) -> Record:
        trainer = self._new_trainer(**changes)
        model = self._built(trainer)
        was_on_meta = on_meta(model)
        places = [place.name for place in plain.tensors if place.step < 0]
        modules = [name for name, _ in model.named_modules()]
        trainer.plain_name = PlainNames([*places, *modules], self.names).of
        trainer.is_plain = False
        trainer.module = module = self._parallelized(model, 0)
        # DistributedDataParallel gives all ranks the buffers of rank 0 then
        self._broadcasts_buffers = getattr(module, "broadcast_buffers", False)
        trainer.record.elsewhere = self._elsewhere(trainer)
        _check_parameters(trainer, plain)
        if was_on_meta:
            self._take_values(module, self._plain_model(trainer))
        if self.training.resume:
            trainer.rebuild = functools.partial(self._rebuilt, trainer)
        trainer.train()
        self._add_terms(plain, trainer.record)
        return trainer.record

    def _add_terms(self, plain: Record, parallel: Record) -> None:
        """Put a sum in the place of its terms, which modules give on the ranks of an axis of equal
        data, where it is near what is due: the user's code may add them up after that module.
        """
        shape = self.training.mesh
        if shape.copies == 1 or self.training.resume_mesh or "outputs" in self.skip:
            return
        mine = {
            place: tensor
            for place, tensor in parallel.of("outputs").items()
            if place.name != "output" and not near(tensor, plain.tensors.get(place))
        }
        there = everywhere(mine)
        for axis in shape.axes.keys() - shape.data_axes:
            ranks = dist.get_process_group_ranks(self._meshes[str(shape)].get_group(axis))
            for place in mine:
                terms = [t for rank in ranks if (t := there[rank].get(place)) is not None]
                alike = len(terms) == len(ranks) and len({term.shape for term in terms}) == 1
                if alike and near(total := torch.stack(terms).sum(0), plain.tensors.get(place)):
                    parallel.tensors[place] = total

    def _elsewhere(self, trainer: Trainer) -> set[str]:
        """Return the parameters and buffers that only other ranks along ``pp`` have."""
        if "pp" not in self.training.mesh.axes:
            return set()
        here = trainer.parameters().keys() | trainer.buffers().keys()
        there = everywhere(here)
        along = self._meshes[str(self.training.mesh)].get_group("pp")
        elsewhere = set().union(*(there[rank] for rank in dist.get_process_group_ranks(along)))
        if (elsewhere := elsewhere - here) and "outputs" not in self.skip:
            self.skip["outputs"] = "not due"
            self.limits.append(
                "outputs are not compared, and the table counts what the rank with most has: each "
                "rank along pp has a part of the model"
            )
        return elsewhere

    def _train_watched(self, plain: Record) -> Record:
        """Return the same, with an eye on its streams where that is asked for. Those of the CPU
        are made for ``fully_shard``, and would not see what other engines wait for in C++.
        """
        if not self.training.races:
            return self._train_parallel(plain)
        engine = self.training.engine
        if self.device.type == "cpu" and not (engine and spec_of(engine).applies_groups):
            self.limits.append("only fully_shard has streams on the CPU that can be watched")
            return self._train_parallel(plain)
        if not works(STREAMS):
            self.limits.append("streams are not watched: see fuzzshard doctor")
            return self._train_parallel(plain)
        with watching(self.device) as watched:
            parallel = self._train_parallel(plain)
        texts = dict.fromkeys(map(describe, watched.races))
        self.races = tuple(itertools.islice(texts, MOST_RACES))
        return parallel

    def _built(self, trainer: Trainer) -> nn.Module:
        """Return the model that is to be parallelised."""
        model = trainer.build()
        trainer.where = "parallelize"
        if on_meta(model) and self._needs_values:
            trainer.materialize(model)
        return model

    def _rebuilt(self, trainer: Trainer) -> nn.Module:
        """The parallelised model once more, with memory and without the values of a training."""
        module = self._parallelized(self._built(trainer), self.training.resume)
        if on_meta(module):
            call(module.to_empty, device=self.device)
        return module

    @property
    def _needs_values(self) -> bool:
        """Whether the engine cannot wrap a model on the meta device."""
        engine = self.training.engine
        return bool(engine) and not spec_of(engine).applies_groups

    def _parallelized(self, model: nn.Module, step: int) -> nn.Module:
        variation, shape = self.training.variation, self.training.mesh_of(step)
        mesh = self._meshes[str(shape)]
        checkpointed = present(model, variation.kept(variation.checkpointed))
        compiled = present(model, variation.kept(variation.compiled))
        if compiled:
            torch.compiler.reset()  # what has been compiled too often runs eagerly
        lines = [*recompute_lines(checkpointed), *compile_lines(compiled)]
        execute(lines, {"model": model})
        if "parallelize" not in self.functions:
            engine = self.training.engine
            named = variation.wrapped
            names = blocks_of(model) if named is None else variation.kept(named)
            blocks = present(model, names)
            self.blocks = blocks if engine_script(engine).wraps_blocks else ()
            data_mesh = mesh[shape.data_axes]
            variables = {"model": model, "mesh": data_mesh, "device": self.device.type}
            lines = wrap_lines(engine, blocks, variation)
            try:
                wrapped: nn.Module = execute(lines, variables)["wrapped"]
            except ValueError as error:
                if SCALARS in str(error):
                    raise _RefusedError(
                        f"{engine} refuses the model: {error} Or pass it in ignored_params in a "
                        "--parallelize of yours, and reduce its gradient in a --train-step"
                    ) from error
                raise
            return wrapped
        seed_everything(PARALLELIZING + self.training.seed)
        module = call(self.functions["parallelize"], model, mesh)
        if torch.initial_seed() != PARALLELIZING + self.training.seed:
            self._seeds = [torch.initial_seed()]
        module = model if module is None else module
        if not isinstance(module, nn.Module):
            raise SubjectError(
                "parallelize", f"returned {type(module).__name__} and no nn.Module, or None"
            )
        return module

    def _take_values(self, module: nn.Module, plain: nn.Module) -> None:
        """Load the values of the plain model, which was built on the meta device too."""
        if on_meta(module):
            call(module.to_empty, device=self.device)
        else:
            self.limits.append(
                "build gives no values, so those that parallelize gives are replaced and not "
                "compared" + self._equal_shards(module)
            )
        options = StateDictOptions(full_state_dict=True)
        call(set_model_state_dict, module, plain.state_dict(), options=options)

    def _equal_shards(self, module: nn.Module) -> str:
        """What is wrong with values that are replaced, as far as that shows without others."""
        sharded = ((n, p) for n, p in module.named_parameters() if isinstance(p, DTensor))
        for name, whole in ((name, kept(parameter)) for name, parameter in sharded):
            if any(repeats(whole, number) for number in self.training.mesh.shards):
                return f"; the shards of {name} are equal: does each rank draw the same numbers?"
        return ""

    def _skip_what_is_not_due(self, plain: Record) -> None:
        buffers = plain.of("buffers").items()
        values = {(place.name, _digest([tensor])) for place, tensor in buffers}
        changing = len(values) > len({name for name, _ in values})
        if self._broadcasts_buffers and dist.get_rank():
            self.skip |= {"buffers": "not due", "state dict": "not due"}
        of_all = "train_step" in self.functions or self.training.global_batch
        if not of_all or self.training.mesh.data_size == 1:
            return
        if changing:
            self.skip |= {"buffers": "left out", "state dict": "left out"}
            self.limits.append(
                "buffers are not compared: the plain model sees the data of all ranks, and its "
                "buffers change in training"
            )

    def _say_what_is_unseen(self, parallel: Record) -> None:
        """Say what no comparison shows, where the user's program has to do with it."""
        if self.training.mesh.data_size == 1:
            return
        if any(everywhere(parallel.draws)):
            self.limits.append(self._unseen_draws(parallel))
        if any(everywhere(parallel.mixes)):
            self.limits.append(
                "train_step calls the model on what belongs to no single batch: such outputs are "
                "not compared, and dropouts there draw other values than in the plain model"
            )

    def _unseen_draws(self, parallel: Record) -> str:
        seeds = [set(seeds) for seeds in everywhere(parallel.seeds or self._seeds)]
        if common := set.intersection(*seeds):
            return (
                f"all ranks are seeded with {min(common)}, so that their dropouts draw alike if "
                "you do not seed them apart; a check seeds each forward itself and compares none "
                "of that"
            )
        return (
            "the model draws random numbers, which a check seeds itself for each batch: whether "
            "your ranks draw apart is not checked"
        )

    def _other_weights(self, parallel: Record) -> Difference | None:
        """Describe a gradient in which train_step weighs batches as --loss-weight does not.

        The plain model has the same step and the same mistake. Where nothing can be told, say so.
        """
        mesh, count, trainer = self.training.mesh, self.training.microbatches, self._trainer
        is_told = "train_step" not in self.functions or self.training.global_batch
        if is_told or mesh.data_size == 1:
            return None
        batches = [trainer.batch(0, number, trainer.data_rank(0)) for number in range(count)]
        if len(set(itertools.chain(*everywhere([*map(_sizes, batches)])))) == 1:
            return None
        if "loss_weight" in self.functions and mesh.copies == 1:
            due = self._in_mesh(0, sum(map(trainer.weight, batches)))
            own = self._train_alone(without="train_step")
            for place in (p for p in own if p.kind == "gradients" and p.step == 0):
                observed = parallel.tensors.get(place)
                if observed is None or observed.numel() > MOST_ELEMENTS:
                    continue
                seen = [Seen(observed, None, own=part) for part in self._in_mesh(0, own[place])]
                close = closeness(place, None, parallel.coarsest)
                here = Likeness(place, seen, mesh, close=close).with_due(due)
                if here is None:
                    continue
                if not (words := here.weighted()):
                    return None
                said = f"{words}, as --loss-weight says"
                return here.seen[0].difference(place, looks_like=said)
        self.limits.append(
            "batches have unequal sizes, and what each weighs within train_step is not "
            "checked: if each token shall count alike, divide by the tokens of all ranks"
            + ", or say with --loss-weight what each weighs"
            * ("loss_weight" not in self.functions)
        )
        return None

    def _structural_difference(self, plain: Record, parallel: Record) -> Difference | None:
        """Describe a tie that is broken, or a step with another number of updates."""
        found = functools.partial(Difference, kind="parameters", rank=dist.get_rank())
        ties = {names - parallel.elsewhere for names in plain.aliases}
        for tied in sorted(sorted(t) for t in ties ^ parallel.aliases if len(t) > 1):
            names = " and ".join(tied)
            said = [f"{names} are parameters of their own", f"{names} are one parameter"]
            is_due = frozenset(tied) in ties
            return found(
                name=tied[0],
                step=-1,
                observed=said[not is_due],
                expected=said[is_due],
                looks_like="a tie that is broken" if is_due else "tied here alone",
            )
        updates = zip(plain.num_updates, parallel.num_updates, strict=True)
        for step, (due, done) in enumerate(updates):
            if due != done:
                return found(
                    name="",
                    step=step,
                    observed=f"{done} updates",
                    expected=f"{due} updates",
                    looks_like=STALE
                    if parallel.stale_optimizer
                    else f"one {PER_MICROBATCH}" * (due == done * self.training.mesh.data_size),
                )
        return None

    def _compare_within_rounding(
        self, plain: Record, parallel: Record, rounded: torch.dtype
    ) -> Comparison:
        """Compare in float64 where both can be trained so and are equal there, else within what
        random changes of a rounding's size do to the plain model.
        """
        fine = torch.float64
        precise = self.training.finer and self._tried(self._train_plain, dtype=fine)
        shake = Shake(torch.finfo(fine).eps)
        shaken = precise and self._tried(self._train_plain, dtype=fine, shake=shake)
        other = precise and shaken and self._tried(self._train_parallel, precise, dtype=fine)
        if precise and shaken and other:
            limits = limits_of(precise, SAME_IN_FLOAT64, OF_NOISE)
            limits.move(precise.tensors, shaken.tensors)
            self._finest = fine if other.coarsest is fine else None
            found = compare(precise, other, limits, name_of(rounded), self.skip)
            if self._everywhere(found.first is None):
                return found
        eps = torch.finfo(rounded).eps
        limits = limits_of(plain, LAST_BITS * eps, OF_NOISE_IN_HALF)
        for number in range(MOST_SHAKEN):
            shake = Shake(eps * (-1) ** number, self.training.seed + number // 2)
            limits.move(plain.tensors, self._train_plain(shake=shake).tensors)
            found = compare(plain, parallel, limits, name_of(rounded), self.skip)
            if self._everywhere(found.first is None):
                break
        return found

    def _first_operator(self, place: Place, rank: int, dtype: torch.dtype) -> FirstOperator | None:
        """Describe the first operator that differs, where ``place`` is what operators make.

        Both models train once more up to that step, in which each rank trains on its own data.
        None where that cannot be done: in a pipeline operators are of microbatches.
        """
        computed = place.kind in ("outputs", "loss", "gradients")
        if not computed or not self.training.operators or "pp" in self.training.mesh.axes:
            return None
        fine, eps, seed = self._finest, torch.finfo(dtype).eps, self.training.seed
        until = msgspec.structs.replace(self.training, steps=place.step + 1)
        recorded = functools.partial(self._recorded, dtype=fine, training=until)
        expected = recorded(self._train_plain)
        observed = expected and recorded(self._train_parallel, expected[0])
        if not expected or not observed:
            return None
        seen = observed[1]
        complete(seen.record, self.training.microbatches, everywhere)
        once, again = twice(seen)
        align(expected[1], seen)
        mesh = self._meshes[str(self.training.mesh_of(place.step))]
        due, cut = parts(expected[1].record, seen.record, mesh)
        share, noise = (SAME_IN_FLOAT64, OF_NOISE) if fine else (LAST_BITS * eps, OF_NOISE_IN_HALF)
        limits = [limits_of(record, share, noise) for record in (expected[0], due)]
        for number in range(1 if fine else MOST_SHAKEN):
            shake = Shake(eps * (-1) ** number, seed + number // 2)
            if moved := recorded(self._train_plain, shake=shake):
                limits[0].move(expected[0].tensors, moved[0].tensors)
                moved_due, _ = parts(moved[1].record, seen.record, mesh)
                limits[1].move(due.tensors, moved_due.tensors)
        of_all = "train_step" in self.functions or self.training.global_batch
        skip: dict[Kind, Skip] = {"gradients": "left out"} if of_all else {}
        of_kinds = compare(expected[0], observed[0], limits[0], "", self.skip | skip)
        is_hidden = place.kind not in skip and self._everywhere(of_kinds.first is None)
        of_operators = compare(due, seen.record, limits[1], "", {})
        equal = None if seen.recomputes else _equal_modules(of_kinds)
        rows = side_by_side(expected[1], seen, of_operators, cut, equal)
        found = first_operator(rows)
        if found.how == "inputs" and "buffers" in self.skip:  # it may take such a buffer
            found = FirstOperator(compared=found.position)
        if found.how != "outputs":
            bound = limits_of(once.record, share, noise)
            of_both = compare(once.record, again.record, bound, "", {})
            of_again = first_operator(side_by_side(once, again, of_both))
            found = of_again if of_again.how == "outputs" else found
        if found.how == "none" and is_hidden:
            found = msgspec.structs.replace(found, how="hidden")
        operators: list[FirstOperator] = self._in_mesh(place.step, found)
        ranked = [msgspec.structs.replace(one, rank=r) for r, one in enumerate(operators)]
        first = min(ranked, key=lambda one: (*order(one), one.rank != rank))
        self.side_by_side = tuple(self._in_mesh(place.step, rows)[first.rank])
        return first

    def _recorded(
        self, train: Callable[..., Record], *given: Any, **changes: Any
    ) -> tuple[Record, Operators] | None:
        """Return what a training gives, and the operators of its last step."""
        operators = Operators()
        record = self._tried(train, *given, operators=operators, **changes)
        if self._everywhere(operators.is_full):
            self.limits.append("no operator is named: those of a step take too much memory")
        return (record, operators) if record and not operators.is_full else None

    def _tried(self, train: Callable[..., Record], *given: Any, **changes: Any) -> Record | None:
        """Return what a training gives; None where it raises on some rank."""
        record = None
        with contextlib.suppress(Exception):
            record = train(*given, **changes)
        return record if self._everywhere(record is not None) else None

    def _difference(self, place: Place, rank: int, plain: Record, parallel: Record) -> Difference:
        """Describe the first difference, that of ``rank``, from what all ranks have there."""
        own = None
        if place.kind == "gradients" and place.step == 0:
            own = self._train_alone(without="loss_weight").get(place)
        expected = plain.tensors.get(place)
        seen = Seen(
            observed=parallel.tensors.get(place),
            expected=expected,
            own=own,
            before=plain.tensors.get(dataclasses.replace(place, step=place.step - 1)),
            initial=plain.tensors.get(Place(-1, "parameters", place.name)),
        )
        size = max((t.numel() for t in (seen.observed, expected) if t is not None), default=0)
        is_small = self._everywhere(size <= MOST_ELEMENTS)
        seen_by = self._in_mesh(place.step, seen) if is_small else [seen]
        index = rank if len(seen_by) > 1 else 0
        gradients = [
            (observed, due)
            for other, due in plain.of("gradients").items()
            if place.kind == "gradients" and other.step == place.step and due is not None
            if (observed := parallel.tensors.get(other)) is not None
        ]
        close = closeness(place, expected, _coarser(plain, parallel))
        likeness = Likeness(
            place,
            seen_by,
            self.training.mesh_of(place.step),
            index,
            gradients,
            close,
            of_one_batch=self.training.global_batch,
        )
        words = self._reason(place, plain, parallel) or str(likeness)
        if words == "never updated" and parallel.stale_optimizer:
            words += f": {STALE}"
        if place.kind == "gradients" and place.name in parallel.switched:
            words += " (its requires_grad changed after the model was wrapped)"
        inside = place.microbatch >= 0
        return seen_by[index].difference(
            place,
            rank=rank,
            microbatch=place.microbatch % self.training.microbatches if inside else -1,
            looks_like=self._in_mesh(place.step, words)[rank] or self._weights_differ,
        )

    def _reason(self, place: Place, plain: Record, parallel: Record) -> str:
        """Return what made a difference, whatever it looks like; every rank must ask."""
        trained = everywhere(parallel.num_batches[place.step] if place.step >= 0 else 0)
        if place.kind == "gradients" and place.name in parallel.frozen - plain.frozen:
            return "no gradient: frozen here, and not in the plain model"
        if place.kind == "parameters" and place.name in plain.frozen - parallel.frozen:
            return "trained here, and frozen in the plain model"
        buffers = everywhere(self._changed_buffers(place, parallel))
        if apart := [n for n in buffers[0] if len({of.get(n) for of in buffers}) > 1]:
            return f"training changes {', '.join(apart)}, and otherwise on each rank: not reduced?"
        if place.step >= 0 and parallel.unsharded:
            return UNSHARDED
        if place.kind == "parameters":
            due, there = (_options(place, record) for record in (plain, parallel))
            for name, value in there.items():
                if name in due and not resume.same(value, due[name]):
                    why = f"a change {PER_MICROBATCH}" if name == "lr" else OF_GROUPS
                    why = "lost when resumed?" if self._lost else why
                    return f"{name} of the optimizer is {value} in place of {due[name]}: {why}"
        if place.step >= 0 and place.kind in ("outputs", "loss", "gradients"):
            modes = {n: m for n, m in parallel.modes.items() if plain.modes.get(n, m) != m}
            for name, training in modes.items():
                here, other = (
                    ("training", "evaluation") if training else ("evaluation", "training")
                )
                return (
                    f"{name or 'the model'} is in {here} mode, in the plain model in {other} mode"
                )
        loaded = {other.name for other in plain.of("state dict")}
        if place.kind == "buffers" and place.step < 0 and place.name not in loaded:
            return "a buffer that no state dict holds: did to_empty leave it without values?"
        if len(set(trained)) > 1:
            counts = (f"rank {rank} on {count}" for rank, count in enumerate(trained))
            return f"ranks train on unequal numbers of batches: {', '.join(counts)}"
        return ""

    def _changed_buffers(self, place: Place, parallel: Record) -> dict[str, int]:
        """Return what buffers were before an output differs, in whose module, or the one that
        calls it, nobody compares them.
        """
        module = module_of(place.name) if place.kind == "outputs" else ""
        caller = module.rpartition(".")[0]
        return {
            other.name: _digest([tensor])
            for other, tensor in parallel.of("buffers").items()
            if other.step == place.step - 1 >= 0 and self.skip.get("buffers") == "left out"
            if module
            if is_within(other.name, module)
            or (caller and other.name.rpartition(".")[0] == caller)
        }

    @property
    def _weights_differ(self) -> str:
        """What is wrong with a loop that knows nothing of the weights of losses."""
        if "loss_weight" not in self.functions or "train_step" in self.functions:
            return ""
        return "the mean of the ranks' own means: --loss-weight says that they weigh differently"

    def _not_judged(self, why: str) -> TrainingReport:
        return TrainingReport(training=self.training, outcome="not judged", message=why)

    def _checked(
        self,
        comparison: Comparison,
        difference: Difference | None = None,
        operator: FirstOperator | None = None,
    ) -> TrainingReport:
        races = tuple(dict.fromkeys(itertools.chain(*everywhere(self.races))))[:MOST_RACES]
        return TrainingReport(
            training=self.training,
            outcome="different" if difference or races else "equal",
            rows=tuple(comparison.rows.values()),
            difference=difference,
            operator=operator,
            side_by_side=self.side_by_side,
            lost=self._lost,
            races=races,
            warned=tuple(self.warned),
            limits=tuple(self.limits),
            blocks=self.blocks,
            outline=self.outline,
        )

    def _earliest(self, place: Place | None) -> Place | None:
        """Return the first of the places that ranks have."""
        places = [p for p in everywhere(place) if p is not None]
        return min(places, key=moment, default=None)

    def _everywhere(self, here: bool) -> bool:
        return all(everywhere(here))

    def _in_mesh(self, step: int, here: Any) -> list[Any]:
        """Return what ranks give that are together in the mesh of a step."""
        return everywhere(here)[: self.training.mesh_of(step).size]


@contextlib.contextmanager
def noted_warnings(found: list[str], known: Sequence[str] = ()) -> Iterator[None]:
    """Append to ``found`` what users are warned of meanwhile, unless that is ``known``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            texts = (str(one.message).strip().splitlines() for one in caught)
            found += dict.fromkeys(text[0] for text in texts if text and text[0] not in known)


def _equal_modules(comparison: Comparison) -> set[tuple[int, str]]:
    """Return the batches and modules for which outputs are equal, whatever operators give them."""
    alike = {True: set[tuple[int, str]](), False: set[tuple[int, str]]()}
    for place, result in comparison.results.items():
        is_equal = result is not None and result[0] != "different"
        if place.kind == "outputs":
            alike[is_equal].add((place.microbatch, module_of(place.name)))
    return alike[True] - alike[False]


@functools.cache
def _mesh(device_type: str, *axes: tuple[str, int]) -> DeviceMesh:
    """Return the one mesh of these axes: ``fully_shard`` wants that of a DTensor, and torch
    remembers the first of those that are equal.
    """
    names, sizes = zip(*axes, strict=True)
    with of_ranks(math.prod(sizes)):
        return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def _coarser(plain: Record, parallel: Record) -> torch.dtype:
    """Return the coarser of the dtypes that two trainings computed in."""
    return max(plain.coarsest, parallel.coarsest, key=lambda dtype: torch.finfo(dtype).eps)


def _check_parameters(trainer: Trainer, plain: Record) -> None:
    """Raise :class:`SubjectError` where a model has other parameters than the plain one."""
    due = {
        p.name: t.shape for p, t in plain.of("parameters").items() if p.step < 0 and t is not None
    }
    with trainer.whole(gradients=False):
        there = {name: parameter.shape for name, parameter in trainer.parameters().items()}
    for name in sorted((due | there).keys() - trainer.record.elsewhere):
        if name not in there:
            problem = f"it has no parameter {name}; if it is renamed, say so with --map"
        elif name not in due:
            problem = f"the plain one has no parameter {name}; make it in build, or use --map"
        elif due[name] != there[name]:
            problem = f"{name} has the shape {tuple(there[name])} and not {tuple(due[name])}"
        else:
            continue
        raise SubjectError("parallelize", f"returned another model: {problem}")


def _options(place: Place, record: Record) -> dict[str, Any]:
    """Return the options with which a parameter was updated: where it was part of another one,
    those that all have.
    """
    options = record.options.get(place.step, {})
    found, *others = [options.get(place.name), *options.values()]
    return found or (others[0] if others and others.count(others[0]) == len(others) else {})


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, without that of torch."""
    return str(dtype).removeprefix("torch.")


def _sizes(batch: Any) -> tuple[Any, ...]:
    """The sizes of the tensors in a nest, and how many elements of each a loss may leave out."""
    return tuple(
        (tuple(tensor.shape), int(((tensor == IGNORED) | _padding(tensor)).sum()))
        for tensor in leaves(batch)
        if isinstance(tensor, torch.Tensor)
    )


def _padding(tensor: torch.Tensor) -> torch.Tensor:
    """Return the zeros of a mask."""
    zeros = tensor == 0
    is_whole = tensor.dim() > 1 and not tensor.is_floating_point()
    is_mask = is_whole and bool((zeros | (tensor == 1)).all())  # a vector may be labels
    return zeros if is_mask else zeros & False


def _digest(values: Any) -> int:
    """Return a checksum of all tensors in a nest."""
    value = 0
    for leaf in leaves(dict(values) if hasattr(values, "items") else values):
        if isinstance(leaf, torch.Tensor):
            data = leaf.detach().cpu().contiguous().flatten()
            value = zlib.crc32(data.view(torch.uint8).numpy().tobytes(), value)
        else:
            value = zlib.crc32(repr(leaf).encode(), value)
    return value
