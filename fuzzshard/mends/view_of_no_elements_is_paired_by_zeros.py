"""DTensor cannot pair the dims of a view of a tensor that has no elements.

``view_groups`` (``torch/distributed/tensor/_ops/_view_ops.py``) multiplies dims of both sides
until the products are equal. With a zero among them they are equal too early, or never again:
``view_groups((0, 3, 3), (0, 3))`` goes on for ever, and torch 2.11 reads beyond the last dim for
others. A rank with an empty batch comes to it in a linear layer over sequences. Sizes that stand
in for the zeros, so that both sides have as many elements, pair the dims as those of any other
tensor.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor.view: an endless loop when the tensor has no elements"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Decompose a reshape operation into forwarding, flattening, or splitting dimensions for each "
    "output dimension",
    "view_groups",
)
SETUP = (
    "The ranks of a tensor-parallel group get an empty batch (the end of an epoch, an expert "
    "without tokens) and run a linear layer over sequences. They do not come back."
)
WORKAROUND = "Skip the layer where the batch is empty."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/174629",
        "near",
        "DTensor view_groups infinite loop zero size tensor empty batch reshape hang",
        "2026-11-22",
    ),
    Public(
        query="DTensor view_groups IndexError list index out of range reshape empty batch tensor "
        "parallel linear zero elements",
        date="2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._view_ops:view_groups",
        """
        from_idx = 0
        to_idx = 0
        """,
        """
        if isinstance(from_nelem, int) and from_nelem == 0:
            counts = [2 * prod([n for n in size if n]) for size in (to_size, from_size)]
            from_size, to_size = (
                [n or (1 if 0 in size[:i] else count) for i, n in enumerate(size)]
                for size, count in zip((from_size, to_size), counts)
            )
        from_idx = 0
        to_idx = 0
        """,
    ),
)
