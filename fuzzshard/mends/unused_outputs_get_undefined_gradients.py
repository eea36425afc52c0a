"""DDP finds out in the graph of its outputs, not of the loss, which gradients come.

With ``find_unused_parameters`` the reducer waits for every parameter that an output depends on,
whether the loss uses that output or not. So ``DistributedDataParallel._post_forward``
(``torch/nn/parallel/distributed.py``) passes outputs through one function, ``_DDPSink``, and a
backward sends undefined gradients through unused ones. A checkpoint there is recomputed all the
same, and batch norms in it update their statistics once more. Where the loss depends on an input
that is returned as it is, and on no parameter, no hook runs: what accumulated under ``no_sync()``
is left out. A static graph counts in its first iteration how often each gradient comes, counts
those that are undefined, and waits for them in vain ever after. The first gradient of any output
can ask the engine which parameters it comes to, and hand in the others; a static graph needs a
function for each output.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "DDP(find_unused_parameters=True): statistics or gradients are wrong when the loss skips an"
    " output"
)
COMPONENT = "DDP"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Parameters that don't receive gradients as part of this graph are preemptively marked as "
    "being ready to be reduced.",
    "DistributedDataParallel, find_unused_parameters",
)
SETUP = (
    "A model has an auxiliary head, the loss uses it in some iterations only, and activation "
    "checkpointing spans a batch norm there."
)
WORKAROUND = "Leave outputs that the loss does not use out of what ``forward`` returns."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/96136",
        "open; near: batch norm and any recomputation",
        "DDP _DDPSink unused output activation checkpointing recompute batch norm running stats "
        "updated twice",
        "2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/97030",
        "open; a static graph",
        "DDP static_graph=True output not used in loss gradients not synchronized second iteration",
        "2026-11-24",
    ),
    Public("https://github.com/pytorch/pytorch/issues/79171", "open; the same"),
    Public(
        query="DDP no_sync accumulated gradients not reduced last backward reaches no parameter",
        date="2026-11-23",
    ),
)
LIFTS = (
    "Expected to mark a variable ready only once",
    "no gradient reduction requires finalization",
)
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
EDITS = (
    Edit(
        f"{_DDP}._ddp_init_helper",
        """
        self.reducer = dist.Reducer(
        """,
        """
        self._reduced_parameters = parameters
        self.reducer = dist.Reducer(
        """,
    ),
    Edit(
        f"{_DDP}._post_forward",
        """
        self.reducer.prepare_for_backward(list(_find_tensors(output)))
        """,
        """
        ddp = weakref.ref(self)

        def hand_in_the_others(_):
            self = ddp()
            if self is None or torch.is_grad_enabled():
                return  # of what torch.autograd.grad(create_graph=True) differentiates
            while self._awaited:
                node, index = self._awaited.popitem()
                if not torch._C._will_engine_execute_node(node):
                    self.reducer._autograd_hook(index)

        tensors = list(_find_tensors(output))
        nodes, reached = [t.grad_fn for t in tensors if t.grad_fn], set()
        while nodes:  # as the reducer searches
            later = {node for node, _ in nodes.pop().next_functions if node} - reached
            nodes.extend(later)
            reached |= later
        trained = [
            (torch.autograd.graph.get_gradient_edge(parameter).node, index)
            for index, parameter in enumerate(self._reduced_parameters)
            if parameter.requires_grad
        ]
        self._awaited = {node: index for node, index in trained if node in reached}
        if trained and not self._awaited:  # what accumulated before would not be reduced
            node, index = trained[0]
            self._awaited[node] = index
            tensors.append(self._reduced_parameters[index].view_as(node.variable))
        self.reducer.prepare_for_backward(tensors)
        tensors = [t for t in tensors if t.requires_grad]
        hook = functools.partial(torch.autograd.graph.register_multi_grad_hook, mode="any")
        hook([t for t in tensors if t.grad_fn], hand_in_the_others)
        if hasattr(self, "_of_leaves"):  # inputs that are outputs outlive a forward
            self._of_leaves.remove()
        self._of_leaves = hook([t for t in tensors if not t.grad_fn], hand_in_the_others)
        """,
    ),
    Edit(
        f"{_DDP}._post_forward",
        """
        passthrough_tensor_list = _DDPSink.apply(
            weakref.ref(self),
            *output_tensor_list,
        )
        """,
        """
        passthrough_tensor_list = [
            _DDPSink.apply(weakref.ref(self), tensor)[0] for tensor in output_tensor_list
        ]
        """,
    ),
)
