"""What an operator reads and writes, by its schema.

A schema says which arguments are written, and which results are views of arguments. What it does
not say, and where that comes from:

- Operators that only change metadata in place have the tag ``inplace_view``.
- Factories (``empty_like``, ``new_zeros``) look at the metadata of their arguments, and those
  named ``empty`` write nothing.
- A result that shares the storage of an argument without saying so (``_unsafe_view``) is a view.
- An operator that returns and writes nothing computes nothing, as
  ``fsdp::record_grad_output_stream``.
- Operators of ``c10d`` write what their arguments are named for (``Ops.cpp``): ``output...``, and
  ``tensors``, which only some ranks write where there is a root.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fuzzshard.instruments.streams.events import Touch

_FACTORY = re.compile(r"(new_|.*_like)")
_OF_THE_ROOT = {"broadcast_": True, "reduce_": False}
"""Collectives with a root that have one argument for both sides; whether the root sends."""


class Accesses(NamedTuple):
    """The tensors that an operator reads and writes, each with the name of its argument; and the
    results that it makes.
    """

    reads: list[tuple[str, torch.Tensor]]
    writes: list[tuple[str, torch.Tensor]]
    made: list[tuple[str, torch.Tensor]]


class _Schema(NamedTuple):
    """What the schema of one operator says of all of its calls."""

    names: tuple[str, ...]
    written: frozenset[str]
    views: frozenset[str]
    fresh: bool
    """Whether it writes results that are new."""
    plain: bool
    """Whether it has results of which it does not say that they are views."""
    factory: bool
    silent: bool
    """Whether it touches no memory at all."""


@functools.cache
def _schema(operator: torch._ops.OpOverload[Any, Any]) -> _Schema:
    schema = operator._schema
    name = operator.__name__.partition(".")[0]
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    views = {a.name for a in schema.arguments if a.alias_info and not a.alias_info.is_write}
    return _Schema(
        names=tuple(argument.name for argument in schema.arguments),
        written=frozenset(written),
        views=frozenset(views),
        fresh="empty" not in name,
        plain=any(r.alias_info is None for r in schema.returns),
        factory=bool(_FACTORY.match(name)),
        silent=torch.Tag.inplace_view in operator.tags or not (schema.returns or written),
    )


def writes_of(operator: torch._ops.OpOverload[Any, Any]) -> frozenset[str]:
    """Return the arguments that an operator says that it writes."""
    return _schema(operator).written


def accesses(
    operator: torch._ops.OpOverload[Any, Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any = None,
) -> Accesses:
    """Return what a call accesses that has this result."""
    schema = _schema(operator)
    found = Accesses([], [], [])
    if schema.silent:
        return found
    given = [*zip(schema.names, args, strict=False), *kwargs.items()]
    shared = frozenset[int]()
    if result is not None:
        results = [*tensors_of(result)]
        arguments = {_storage(t) for _, value in given for t in tensors_of(value)}
        if schema.fresh:
            found.made.extend(("result", t) for t in results if _storage(t) not in arguments)
        if schema.plain:
            shared = frozenset(map(_storage, results))
    for name, value in given:
        for tensor in tensors_of(value):
            if name in schema.written:
                found.writes.append((name, tensor))
            elif not (schema.factory or name in schema.views or _storage(tensor) in shared):
                found.reads.append((name, tensor))
    return found


def collective(
    operator: torch._ops.OpOverload[Any, Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Accesses:
    """Return what a call of an operator of ``c10d`` accesses."""
    name = operator.__name__.partition(".")[0]
    found = Accesses([], [], [])
    if "barrier" in name:
        return found
    given = dict(zip(_schema(operator).names, args, strict=False)) | kwargs
    for argument, value in given.items():
        tensors = [(argument, tensor) for tensor in tensors_of(value)]
        if argument.startswith("output"):
            found.writes.extend(tensors)
        elif argument in ("tensors", "tensor"):
            writes, reads = _both_sides(name, given)
            found.writes.extend(tensors * writes)
            found.reads.extend(tensors * reads)
        else:
            found.reads.extend(tensors)
    return found


def _both_sides(name: str, given: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether this rank writes and reads the tensors that a collective changes in place."""
    if name.startswith(("recv", "send", "check")):
        return name.startswith("recv"), not name.startswith("recv")
    sends = _OF_THE_ROOT.get(name)
    if sends is None:
        return True, True
    is_root = group_of(given.values()).rank() == given["root_rank"]
    return is_root is not sends, is_root is sends or not sends


def group_of(args: Iterable[Any]) -> dist.ProcessGroup:
    """Return the process group among the arguments of an operator of ``c10d``."""
    name = "__torch__.torch.classes.c10d.ProcessGroup"
    boxed = next(
        a for a in args if isinstance(a, torch.ScriptObject) and a._type().qualified_name() == name
    )
    return dist.ProcessGroup.unbox(boxed)


def work_of(result: Any) -> dist.Work:
    """Return the ``Work`` of a collective from the results of its ``c10d`` operator."""
    return dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)


def telling(owner: Any, name: str, tell: Callable[..., None]) -> Any:
    """Return a context in which a function or method tells of what it was called with, once it is
    done.
    """
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        done = function(*args, **kwargs)
        tell(*args, **kwargs)
        return done

    return mock.patch.object(owner, name, call)


def waited_tensors(
    operator: torch._ops.OpOverload[Any, Any], args: Sequence[Any]
) -> Sequence[torch.Tensor]:
    """Return the results of functional collectives for which an operator lets a stream wait."""
    if operator.__name__.partition(".")[0] not in ("wait_tensor", "wait_tensors"):
        return ()
    return args[0] if isinstance(args[0], list) else args[:1]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result; of those that wrap others, these."""
    if isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_of(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (list, tuple, dict)):
        for leaf in pytree.tree_leaves(value):
            yield from tensors_of(leaf)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def touch(tensor: torch.Tensor, begin: int, memory: int, label: str) -> Touch:
    """Return the bytes that a tensor at ``begin`` has, those of its gaps left out."""
    width, steps = _extent(tuple(tensor.shape), tensor.stride(), tensor.element_size())
    end = begin + width + sum((count - 1) * stride for count, stride in steps)
    return Touch(begin, end, memory, width if steps else 0, steps, label)


@functools.lru_cache(maxsize=4096)
def _extent(
    shape: tuple[int, ...], strides: tuple[int, ...], item: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the width of the runs that a tensor consists of, and how they follow each other."""
    width = item
    steps: list[tuple[int, int]] = []
    dims = sorted((stride * item, size) for size, stride in zip(shape, strides, strict=True))
    for stride, size in dims:
        if size == 1 or stride == 0:
            continue
        if not steps and stride <= width:  # overlaps itself, or adjoins
            width += (size - 1) * stride
        else:
            steps.append((size, stride))
    return width, tuple(steps)


def label(name: str, tensor: torch.Tensor) -> str:
    """Say what a tensor is, for a person."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name}: {dtype}{list(tensor.shape)}"
