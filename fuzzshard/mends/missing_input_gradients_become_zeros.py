"""What comes before an unused input of a wrapped module gets a gradient of zeros.

Inputs that require gradients pass through ``RegisterPostBackwardFunction``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``), one autograd function for all of
them. Its backward runs as soon as one of them has a gradient, and autograd then hands it zeros for
the others, which it passes on. Parameters before an input that the module does not use get a
gradient of zeros in place of ``None``: weight decay and momentum move them. It needs no gradients
itself, so it can ask for none (``ctx.set_materialize_grads``). Then ``Redistribute`` of DTensors
has to ask for none as well (``torch/distributed/tensor/_redistribute.py``): the zeros that
autograd makes for it are no DTensor.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: gradients are zeros in place of None when a wrapped module does not use an input"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "`.grad`s are guaranteed to be None for params that did not receive a gradient",
    "Optimizer.zero_grad",
)
SETUP = (
    "A block takes an input that it does not use in this configuration (a mask head, a "
    "conditioning). Weight decay and momentum move what computed that input, which they do not "
    "under plain training."
)
WORKAROUND = "Do not pass the unused input, or detach it."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/133498",
        "closed in 2024: the same change, made to save the zeros; no release looked at here has "
        "it",
        "FSDP2 gradient zeros instead of None unused input RegisterPostBackwardFunction "
        "materialize grads",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:RegisterPostBackwardFunction.setup_context",
        "ctx.param_group = param_group",
        """
ctx.param_group = param_group
ctx.set_materialize_grads(False)
        """,
    ),
    Edit(
        "torch.distributed.tensor._redistribute:Redistribute.forward",
        "ctx.async_op = async_op",
        """
ctx.async_op = async_op
ctx.set_materialize_grads(False)
        """,
    ),
    Edit(
        "torch.distributed.tensor._redistribute:Redistribute.backward",
        "output_dtensor = NestedRedistribute.apply(",
        """
if grad_output is None:
    return (None,) * len(ctx.needs_input_grad)
output_dtensor = NestedRedistribute.apply(
        """,
    ),
)
