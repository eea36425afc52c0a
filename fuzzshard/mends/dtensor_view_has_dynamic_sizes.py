"""Dynamo makes the sizes of a DTensor that is a view dynamic, and its trace has symbols that
nothing binds.

A frame of hooks is compiled once for all modules, so the sizes of its second DTensor make it
dynamic (``_automatic_dynamic`` in ``torch/_dynamo/variables/builder.py``). Where the DTensor is a
view, the view is replayed with symbols of its own for its sizes (``symint_visitor_fn`` in
``torch/_subclasses/meta_utils.py``), which are "expected to be simplified out", and are not: a
guard on one of them finds no source, or the graph keeps the sizes that it was traced with and gets
other ones. With static sizes such a frame is compiled once more instead.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: a guard or a size is wrong when a DTensor with dynamic sizes is a view"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "The symbol here is expected to be simplified out [...] This -shouldn't- happen, but if this "
    "symbol somehow leaks out [...] it may be guarded on, which will hard error",
    "symint_visitor_fn, a comment",
)
WORKAROUND = (
    "``torch._dynamo.config.automatic_dynamic_shapes = False``, so that each size is compiled "
    "on its own."
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        says="near: pytorch issues 154111 and 159709, closed, of other operations on such "
        "DTensors",
        query="torch.compile DTensor automatic dynamic shapes aot_autograd view static size shape "
        "is invalid for input of size tensor parallel recompile",
        date="2026-11-22",
    ),
)
# ``verify --causes`` calls one of its entries UNNEEDED on 2.13, f3fc7e4c: with the right strides, of
# traced_view_strides, its trace has no such symbol.
EDITS = (
    Edit(
        "torch._dynamo.variables.builder:_automatic_dynamic",
        """
        # Get base context if the tensor is a view
        """,
        """
        # Get base context if the tensor is a view
        static_shapes = static_shapes or (e._is_view() and is_traceable_wrapper_subclass(e))
        """,
    ),
)
