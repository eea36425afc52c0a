"""A compiled graph is used again after a parameter was frozen or thawed: gradients are lost.

Dynamo guards on the properties of each parameter, among them ``requires_grad``. It skips these
guards if the dictionary that holds the parameter has not changed (``is_immutable_object`` in
``torch/csrc/dynamo/guards.cpp``, which treats a parameter as immutable). But ``requires_grad_()``
changes the parameter in place: nothing is compiled again, and the old graph gives no gradient to a
parameter that was thawed. Since torch 2.12 the guards are checked.
"""

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = (
    "torch.compile: gradients are lost when requires_grad_() thaws a parameter of a compiled model"
)
COMPONENT = "compile"
CONTRACT = Promise(
    "requires_grad_()'s main use case is to tell autograd to begin recording operations on a "
    "Tensor",
    "torch.Tensor.requires_grad_",
)
SETUP = "Fine-tuning thaws block after block of a compiled model. The blocks stay as they are."
WORKAROUND = "``torch.compiler.reset()`` after thawing."
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/177158",
        "the fix, in torch 2.12",
        "torch.compile no recompile when parameter requires_grad changes recursive dict tag "
        "guards",
        "2026-11-23",
    ),
    Public("https://github.com/pytorch/pytorch/issues/139476", "open; the bug"),
)


def apply(patch: Patch) -> None:
    """Sets the option of Dynamo that lets all guards of parameters be checked."""
    from torch._dynamo import config

    option = config._config["skip_tensor_guards_with_matching_dict_tags"]  # type: ignore[attr-defined]
    patch(option, "user_override", False)
