"""The metadata inference of a pipeline stage leaves what it did to buffers.

A stage whose shapes are not given runs a forward before the first microbatch
(``PipelineStage._forward_metadata_inference`` in torch/distributed/pipelining/stage.py), behind
the first stage on memory that nobody has written to. Counts and running means of the module keep
what that forward made of them. Torch 2.14 restores buffers (PR 188558), but those that a forward
assigns: ``metadata_inference_assigns_buffers``.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: running statistics begin with what metadata inference has made"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Those executions are allowed to observe module buffers, but they must not publish training"
    " state updates such as running counters or routing statistics.",
    "torch.distributed.pipelining.PipelineStage._pre_metadata_inference_backup, since 2.14",
)
SETUP = "A ``PipelineStage`` without ``input_args`` of a module with batch norms."
WORKAROUND = "Use torch 2.14, or give PipelineStage its ``input_args`` and ``output_args``."
TORCH = Releases(since="2.13", until="2.14")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/pull/188558", "closed: restores them since 2.14"),
)
_STAGE = "torch.distributed.pipelining.stage:PipelineStage"
EDITS = (
    Edit(
        f"{_STAGE}._prepare_forward_infra",
        "fwd_meta_output: _StageForwardMeta | None = None",
        """
        self._buffers_before = [
            (module, name, buffer, buffer.detach().clone())
            for module in self.submod.modules()
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
        ]

        fwd_meta_output: _StageForwardMeta | None = None
        """,
    ),
    Edit(
        f"{_STAGE}._post_metadata_inference_cleanup",
        "self._fwd_outputs_for_bwd_meta = None",
        """
        with torch.no_grad():
            for module, name, buffer, saved in self.__dict__.pop("_buffers_before", ()):
                buffer.copy_(saved)
                module._buffers[name] = buffer
        self._fwd_outputs_for_bwd_meta = None
        """,
    ),
)
