"""``tree_map`` over the ``__dict__`` of an object fails in a compiled function.

Dynamo maps over a dict without tracing ``tree_map``: ``ConstDictVariable.call_tree_map_branch`` in
``torch/_dynamo/variables/dicts.py`` calls ``type(self.items)()`` for an empty dict of the same
class, and clones itself with what it fills in. The ``__dict__`` of an object, which ``vars``
returns, is a ``DunderDictVariable``. Its items are a view of the object
(``SideEffectsProxyDict``), which cannot be made without the object, and its clone would be a view,
too. ``call_tree_map_with_path_branch`` does the same. Both trace ``tree_map`` itself where they
cannot map over a dict, and have to do so here.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: TypeError when tree_map maps over vars() of an object"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If False (default), torch.compile attempts to discover compilable regions in the function "
    "that it will optimize.",
    "torch.compile, fullgraph",
)
SETUP = (
    "Code that is compiled maps over the fields of a dataclass, as a hook does that casts the "
    "inputs of a model for mixed precision."
)
WORKAROUND = "Map over ``dict(vars(obj))``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import dataclasses

import torch
from torch import nn
from torch.utils._pytree import tree_map


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, dtype=torch.bfloat16)

    def forward(self, batch):
        batch = Batch(**tree_map(lambda t: t.bfloat16(), vars(batch)))
        return self.linear(batch.x)


model = Model()
model.compile(backend="eager")
model(Batch(torch.ones(1, 2)))
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/168342",
        "near, closed: has tree_map mapped over without tracing, with the line",
        "dynamo call_tree_map_branch ConstDictVariable type(self.items)() tree_map fastpath",
        "2026-11-29",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/174941",
        "brought, closed: 'Consolidate `__dict__` handling across Dynamo codebase'",
        "dynamo DunderDictVariable SideEffectsProxyDict __dict__ of user defined object",
        "2026-11-29",
    ),
    Public(
        query="SideEffectsProxyDict.__init__() missing 2 required positional arguments 'item' and "
        "'tx'",
        date="2026-11-29",
    ),
    Public(
        query="torch.compile tree_map over obj.__dict__ vars dataclass TypeError missing 2 "
        "required positional arguments",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch._dynamo.variables.dicts:ConstDictVariable.call_tree_map_branch",
        """
        other_dicts: list[ConstDictVariable] = []
        """,
        """
        if isinstance(self.items, SideEffectsProxyDict):
            return self._tree_map_fallback(tx, tree_map_fn, map_fn, rest, tree_map_kwargs)
        other_dicts: list[ConstDictVariable] = []
        """,
    ),
    Edit(
        "torch._dynamo.variables.dicts:ConstDictVariable.call_tree_map_with_path_branch",
        """
        other_dicts: list[ConstDictVariable] = []
        """,
        """
        if isinstance(self.items, SideEffectsProxyDict):
            return self._tree_map_with_path_fallback(
                tx, tree_map_fn, map_fn, rest, tree_map_kwargs, keypath
            )
        other_dicts: list[ConstDictVariable] = []
        """,
    ),
)
