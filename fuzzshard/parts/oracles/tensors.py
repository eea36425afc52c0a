"""Tensors that are compared with the reference's."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class Output(oracle.TensorOracle):
    """Every output of the module that is called, on every rank, after each forward.

    It cannot see a wrong value that no output depends on, or one below the tolerance of its
    comparison.
    """

    name = "output"
    place = 40
    looks = ("outputs",)
    of_forward = True
    what = "output"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.outputs.items()

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> dict[str, str]:
        return watch.outputs(index)


class Loss(oracle.TensorOracle):
    """The loss of each forward, on every rank.

    It cannot see errors that cancel in the sum over all outputs. Cases with ``observe="losses"``
    have nothing else to compare.
    """

    name = "loss"
    place = 50
    looks = ("outputs",)
    of_forward = True
    is_loss = True
    what = "loss"
    thing = "The loss"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return [(self.name, seen.loss)]

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> dict[str, str]:
        return {self.name: watch.loss(index)}


class InputGradient(oracle.TensorOracle):
    """The gradients of inputs that require one, after each backward.

    It cannot see the gradients of what modules pass to each other.
    """

    name = "input_gradient"
    place = 60
    looks = ("inputs",)
    gradient = "input"
    what = "gradient of an input"
    thing = "The gradient of {name}"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return ((name, x.grad) for name, x in seen.trainer.feed.differentiable())

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> dict[str, str]:
        inputs = watch.scope.inputs.differentiable()
        return {name: f"{variable}.grad" for name, variable in inputs.items()}


class Norm(oracle.TensorOracle):
    """The norm of all gradients that clipping returns, or None where it raised an error.

    That of FSDP1 "is in FP32 even if parameters/gradients are in a low precision"
    (fully_sharded_data_parallel.py, ``_get_grad_norm``).

    It cannot see that gradients are clipped by another norm; ``gradient`` does.
    """

    name = "norm"
    place = 65
    looks = ("norm",)
    dtype = "wider"
    what = "norm of the gradients"
    thing = "The norm of the gradients"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return [(self.name, seen.norm)]

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> dict[str, str]:
        return {self.name: self.name}


class Gradient(oracle.ParameterGradient):
    """The reduced gradient of every parameter after a backward that synchronises.

    It is compared before the optimizer steps, so that Adam cannot hide a wrong scale. Each rank
    compares its own shard. Whether there is a gradient, its shape and its dtype must agree too.

    It cannot see which of several reductions made a wrong sum.
    """

    name = "gradient"
    place = 70
    gradient = "reduced"
    what = "gradient of a parameter"
    thing = "The gradient of {name}"


class LocalGradient(oracle.ParameterGradient):
    """The gradient that a rank accumulates in ``.grad`` under ``no_sync()``.

    What a rank has not reduced yet may have a wider dtype than its backward gave it: where FSDP1
    does not shard, it is added to the flat gradient that was reduced before.

    It cannot see gradients that ``fully_shard`` keeps under private names until they are reduced;
    ``unreduced_gradient`` does.
    """

    name = "local_gradient"
    place = 80
    gradient = "local"
    dtype = "wider"
    what = "gradient that is accumulated without synchronisation"
    thing = "The unsynchronised gradient of {name}"


class Parameter(oracle.TensorOracle):
    """Every parameter after a step of the optimizer, as shards under an engine that shards.

    It cannot see why a step was wrong; ``gradient`` comes first and says so where it can.
    """

    name = "parameter"
    place = 110
    looks = ("trained",)
    is_weight = True
    in_flat = True
    held = True
    value = "p"
    single = "{one}"
    what = "parameter after the optimizer step"
    thing = "{name} after the optimizer step"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.observed().items()


class OptimizerState(oracle.StateOracle):
    """The states of the optimizer after a step: moments and momentum buffers.

    It comes after ``parameter``, in which a wrong step shows as well.

    It cannot see the states of FSDP1, which belong to flat parameters.
    """

    name = "optimizer_state"
    place = 115
    looks = ("stepped",)
    what = "state of the optimizer after a step"
    thing = "{name} after the optimizer step"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if seen.engine.registers:
            super().record(seen, index, look)


class Scale(oracle.TensorOracle):
    """What a ``GradScaler`` scales losses with, after a step and a load.

    It cannot see how soon that grows; unscaled gradients depend on it where they overflow alone.
    """

    name = "scale"
    place = 117
    looks = ("trained",)
    what = "scale of the losses"
    thing = "The scale of the losses"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        scale = seen.scale
        return [] if scale is None else [(self.name, scale)]

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> dict[str, str]:
        scales = watch.case.optimizer.scaler
        return {self.name: "torch.tensor(scaler.get_scale())"} if scales else {}


class StateDict(oracle.TensorOracle):
    """Every tensor of a state dict, where it is taken.

    One that was taken earlier is compared again where its tensors are the model's own.

    It cannot see entries that are not tensors.
    """

    name = "state_dict"
    place = 120
    looks = ("dict", "taken")
    what = "state dict"
    value = "t"
    over = "n, t in taken.items()"
    thing = "{name} in the state dict"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        if look == "taken" and not seen.engine.state_dict_aliases:
            return
        taken = seen.trainer.states.taken
        for fqn in {*taken, *(seen.engine.observed() if look == "dict" else ())}:
            seen.keep(self, index, fqn, taken.get(fqn))

    @override
    def one(self, watch: oracle.Watch, index: int) -> str:
        taken = "taken"
        if watch.scope.engine.wrapper:
            taken = '{n.removeprefix("module."): t for n, t in taken.items()}'
        return f'({taken}).get("{watch.assertion.name}")'


class RegisteredParameter(oracle.TensorOracle):
    """The value of every registered parameter between a forward and its backward.

    This is what ``model.parameters()`` gives a user at that moment, gathered with
    ``full_tensor()`` where it is a DTensor. Any dtype may be registered; ``registration`` judges
    which one it is.

    It cannot see parameters of FSDP1, which registers views of flat parameters.
    """

    name = "registered_parameter"
    place = 130
    looks = ("parameters",)
    dtype = "observed"
    gathered = False
    what = "parameter after forward"
    value = "{registered}"
    over = "n in names"
    single = "{one}"
    thing = "{name} after the forward"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        for fqn in seen.engine.inferred.parameters if seen.engine.registers else ():
            seen.keep_once(self, index, fqn, seen.engine.parameter(fqn))


class Buffer(oracle.TensorOracle):
    """Every buffer, such as the statistics of batch norms, after what may change it.

    It cannot see what a recomputation makes of a statistic before the next forward, which is what
    it looks at.
    """

    name = "buffer"
    place = 140
    looks = ("buffers",)
    of_buffers = True
    what = "buffer"
    value = "b"
    over = "n, b in zip(buffer_names, {called}.buffers())"
    single = "{one}"
    thing = "The buffer {name}"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.buffers()


_NOTE = """
# the dtypes of the tensors that a module is called with
received = []


def note(module, args, kwargs):
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    received.append([tensor.dtype for tensor in tensors])
"""


class ModuleInput(oracle.TensorOracle):
    """The dtype of every tensor that a module within the model is called with, in each forward.

    What precedes casts its outputs as its policy says, and these are the inputs. They are looked
    at before the module that gets them can cast them itself.

    It cannot see values, nor the calls in stages of a pipeline or in compiled models.
    """

    name = "module_input"
    place = 35
    looks = ("outputs",)
    stops_at_op = True
    needs_finding = True

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.received.items()

    @override
    def headline(self, finding: oracle.Finding, *, ends: str) -> str:
        return "a module gets its input in the wrong dtype"

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        return assertion.at(finding)

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        return _NOTE.strip().splitlines()

    @override
    def around(self, scope: oracle.Scope, lines: list[str]) -> list[str]:
        due = oracle.TensorType.read(scope.assertion.expected)
        which, _, path = scope.assertion.name.partition(" of ")
        if due is None or not path:
            raise UsageError("no script can tell which input is meant", "replay the case")
        _, number, call = which.split()
        return [
            f"{scope.at(path)}.register_forward_pre_hook(note, prepend=True, with_kwargs=True)",
            *lines,
            f"observed = received[{call}][{number}]",
            f"expected = {due.dtype}",
            oracle.SAME_TYPE,
        ]


class UnreducedGradient(oracle.TensorOracle):
    """The gradients that ``fully_shard`` holds under private names until they are reduced.

    What has been reduced must be None there.

    It cannot see anything with a torch in which its instrument reads wrong.
    """

    name = "unreduced_gradient"
    place = 90
    looks = ("unreduced",)
    gradient = "waiting"
    harm = oracle.Severity.INTERNAL
    needs_finding = True
    rests_on = "unreduced gradients"
    thing = "The gradient of {name} that is not reduced yet"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.unreduced_gradients().items()

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion | None:
        if finding.detail in (oracle.MISSING, oracle.UNEXPECTED):
            return assertion.at(finding).but(expected=finding.detail)
        raise UsageError(
            "a script cannot compare gradients that are not reduced yet", "replay the case"
        )

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        assertion = scope.assertion
        who = f"rank {{rank}}: {assertion.name}"
        if assertion.expected == oracle.MISSING:
            text = f'"{who}: an unreduced gradient should be kept, and is not"'
            right = f"any(grad is not None for grad in grads), f{text}"
        else:
            text = f'"{who}: an unreduced gradient is kept: {{grads}}"'
            right = f"all(grad is None for grad in grads), f{text}"
        return [
            f"held = {scope.part(assertion.name)}",
            'computed = getattr(getattr(held, "_unsharded_param", None), "grad", None)',
            "grads = [held.unsharded_accumulated_grad, computed]",
            f"assert {right}",
        ]
