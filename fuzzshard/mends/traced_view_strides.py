"""A trace gives the dims of size 1 of a view other strides than the view has.

The strides of a view are computed in ``at::detail::computeStride``. A fake tensor takes its own
from ``torch._refs._reshape_view_helper`` (``_view_meta`` in ``torch/_subclasses/fake_impls.py``),
which leaves dims alone that have the right length already. The two differ in the strides of dims
of size 1, and Dynamo, which replays the view of a graph's input on fake tensors, fails on the
difference (``view_from_base`` in ``torch/_subclasses/meta_utils.py``). torch has the right
algorithm in Python, too, ``_compute_stride``, for sizes without hints only.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: an error when a view of an input has a dim of size 1"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "This is a class for converting multiple tensors into meta tensors which share the same "
    "view/storage structure.",
    "torch/_subclasses/meta_utils.py, MetaConverter",
)
SETUP = "A batch of one."
TORCH = Releases(since="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/186459",
        "closed; of the strides of a view in a trace, fixes issue 124181 of group norm with them",
        "FakeTensor view stride mismatch size 1 dimension eager view changes stride "
        "_reshape_view_helper",
        "2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch._subclasses.fake_impls:_view_meta",
        """
        else:
        """,
        """
        else:
            sizes = utils.extract_shape_from_varargs(shape, validate=False)
            sizes = utils.infer_size(sizes, a.numel())
            strides = _compute_stride(a.size(), a.stride(), sizes)
            if strides is not None:
                return a.as_strided(sizes, strides)
        """,
    ),
)
