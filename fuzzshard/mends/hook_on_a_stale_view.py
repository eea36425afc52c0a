"""``Tensor.register_hook`` dies on a view that was changed in place and not looked at since.

Such a view makes its ``grad_fn`` anew when somebody reads it, and that resets the tensor's dict of
hooks (``update_tensor_hooks_on_new_gradfn`` in ``torch/csrc/autograd/variable.cpp``).
``Tensor.register_hook`` (``torch/_tensor.py``) first makes the dict and then reads ``grad_fn`` for
the first time: the dict is gone when the hook is put into it, a SIGSEGV. ``fully_shard`` and FSDP1
register hooks on every output of a wrapped module, so a module that returns such a view dies;
plain torch does as well. Torch 2.15 reads ``grad_fn`` before.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "Tensor.register_hook: segmentation fault when the tensor is a view that was changed in place"
)
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "The hook will be called every time a gradient with respect to the Tensor is computed",
    "Tensor.register_hook",
)
SETUP = (
    "A module that returns a slice which it has changed in place is wrapped by ``fully_shard`` "
    "or FSDP1, which register a hook on every output."
)
WORKAROUND = "Read ``tensor.grad_fn`` once before, or return a clone."
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/196459",
        "fixed by pytorch PR 196514, in torch 2.15",
    ),
)
EDITS = (
    Edit(
        "torch._tensor:Tensor.register_hook",
        "if self._backward_hooks is None:",
        """
_ = self.grad_fn
if self._backward_hooks is None:
        """,
    ),
)
