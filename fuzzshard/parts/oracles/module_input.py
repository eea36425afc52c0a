"""In which dtypes modules get their inputs."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle

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
