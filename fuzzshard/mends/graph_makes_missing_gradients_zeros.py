"""The backward of a compiled graph makes zeros of the missing gradients of its outputs, and passes
them on.

A compiled graph is one autograd function (``CompiledFunction`` in
``torch/_functorch/_aot_autograd/runtime_wrappers.py``), and autograd makes zeros of the gradients
that do not reach its outputs, for its backward takes them all. So a parameter that only an unused
output depends on gets a gradient of zeros in place of None, by which an optimizer decays its
weight and moves its momentum. The graph of the backward says which of its results depend on which
gradients: those that depend on missing ones only are missing, too. ``CompiledFunction`` is made
anew for every graph, so it is changed where it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "torch.compile: gradients are zeros in place of None when an output of the graph is unused"
COMPONENT = "compile"
WEIGHT = "limitation"
CONTRACT = Promise(
    "If the user requests zero_grad(set_to_none=True) followed by a backward pass, .grads are "
    "guaranteed to be None for params that did not receive a gradient",
    "Optimizer.zero_grad",
)
SETUP = (
    "A model with an auxiliary head is compiled, and the loss does not use that head. Weight "
    "decay and momentum move the head, which they do not without ``torch.compile``."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/131794", "open"),
    Public(
        "https://github.com/pytorch/pytorch/pull/186355",
        "closed; prunes it from the backward's graph",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/194523",
        "closed; a backward for each set of missing gradients",
        "torch.compile unused output gradient zeros instead of None set_materialize_grads "
        "AOTAutograd",
        "2026-11-23",
    ),
)


def apply(patch: Patch) -> None:
    """Has each compiled autograd function tell missing gradients from zeros."""
    from torch._functorch._aot_autograd.runtime_wrappers import RuntimeWrapper

    post_compile = RuntimeWrapper.post_compile

    def changed(self: Any, compiled_fn: Any, *args: Any, **kwargs: Any) -> Any:
        if self.trace_joint:
            _tell_missing(compiled_fn.__self__)
        return post_compile(self, compiled_fn, *args, **kwargs)

    patch(RuntimeWrapper, "post_compile", changed)


def _tell_missing(function: Any) -> None:
    forward, backward = function.forward, function.backward

    def keeping_zeros(ctx: Any, *args: Any) -> Any:
        outputs = forward(ctx, *args)
        ctx.set_materialize_grads(False)
        ctx.zeros = [_zeros_of(output) for output in outputs]
        return outputs

    def passing_none(ctx: Any, *args: Any) -> Any:
        boxed = getattr(function, "boxed_grads_call", False)
        gradients = args[0] if boxed else list(args)
        differentiable = _differentiable_outputs(function.metadata)
        missing = {nr for nr, place in enumerate(differentiable) if gradients[place] is None}
        for place in differentiable:
            if gradients[place] is None:
                gradients[place] = ctx.zeros[place]()
        results = backward(ctx, gradients) if boxed else backward(ctx, *gradients)
        if not missing:
            return results
        needs = _gradients_needed(function)
        return tuple(
            None if nr < len(needs) and needs[nr] and needs[nr] <= missing else result
            for nr, result in enumerate(results)
        )

    function.forward, function.backward = staticmethod(keeping_zeros), staticmethod(passing_none)


def _zeros_of(output: Any) -> Callable[[], Any]:
    """What makes zeros like ``output`` without keeping it."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not isinstance(output, torch.Tensor):
        return lambda: output
    if not is_traceable_wrapper_subclass(output):
        shape, dtype, device = output.shape, output.dtype, output.device
        return lambda: torch.zeros(shape, dtype=dtype, device=device)
    kind, size, stride = type(output), output.size(), output.stride()
    names, context = output.__tensor_flatten__()
    inner = {name: _zeros_of(getattr(output, name)) for name in names}
    return lambda: kind.__tensor_unflatten__(
        {n: make() for n, make in inner.items()}, context, size, stride
    )


def _differentiable_outputs(metadata: Any) -> list[int]:
    """The outputs of the function whose gradients its backward takes, in the backward's order."""
    import torch
    from torch._functorch._aot_autograd.schemas import OutputType

    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    changed = [metadata.input_info[place] for place in metadata.mutated_inp_runtime_indices]
    taken = [info.mutates_data and info.requires_grad for info in changed]
    taken += [
        info.output_type in own
        and issubclass(info.raw_type, torch.Tensor)
        and getattr(info, "requires_grad_for_backward", info.requires_grad)
        for info in metadata.output_info
    ]
    taken += [True] * metadata.num_intermediate_bases
    return [place for place, is_taken in enumerate(taken) if is_taken]


def _gradients_needed(function: Any) -> Sequence[set[int]]:
    """For each result of the backward, the numbers of the gradients that it depends on."""
    graph = function._lazy_backward_info.bw_module.graph
    subclasses = function.maybe_subclass_metadata
    owners = [
        nr
        for nr, meta in enumerate(function.metadata.subclass_tangent_meta)
        for _ in _leaves(meta, subclasses)
    ]
    needs: dict[Any, set[int]] = {}
    for node in graph.nodes:
        needs[node] = set().union(*(needs[above] for above in node.all_input_nodes))
        if node.op == "placeholder" and str(node.target).startswith("tangents"):
            needs[node].add(owners.pop(0))
    results = graph.output_node().args[0]
    if subclasses is not None:
        first = [
            getattr(m, "unwrapped_idx", getattr(m, "flat_tensor_start_idx", -1))
            for m in subclasses.grad_input_metas
        ]
        results = [results[place] for place in first]
    return [needs.get(result, set()) for result in results]


def _leaves(meta: Any, subclasses: Any) -> Iterator[None]:
    """One for each plain tensor that a gradient is made of."""
    if subclasses is None or not hasattr(meta, "attrs"):
        yield None
    else:
        for inner in meta.attrs.values():
            yield from _leaves(inner, subclasses)
