"""A compiled graph is used again after a parameter was frozen or thawed: gradients are lost.

Dynamo guards what each parameter is, ``requires_grad`` with it, and skips these guards where the
dictionary that holds the parameter is as it was (``is_immutable_object`` in
``torch/csrc/dynamo/guards.cpp``, which takes a parameter for immutable). ``requires_grad_()``
changes the parameter in place, so that nothing is compiled anew, and the old graph gives no
gradient to a parameter that was thawed. Where the guards are checked, the graph is another, as it
is since torch 2.12.
"""

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "A compiled model goes on with the graph from before requires_grad_()"
COMPONENT = "compile"
CONTRACT = Promise(
    "requires_grad_()'s main use case is to tell autograd to begin recording operations on a "
    "Tensor",
    "torch.Tensor.requires_grad_",
)
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
