"""What scripts of DDP say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.case.facts import facts
from fuzzshard.model.statements import call_lines
from fuzzshard.program.script import Script

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.options import DDP
    from fuzzshard.program.mesh import MeshNames

_BUCKETS = {
    "few_each": "bucket_cap_mb=2e-4",
    "one_each": "bucket_cap_mb=1e-6",
    "listed": "bucket_cap_mb_list=[1e-4, 2e-5, 3e-4]",
}
_BUFFERS = {
    "local": "broadcast_buffers=False",
    "forward_local": "forward_sync_buffers=False",
    "broadcast": "broadcast_buffers=True",
    "forward_broadcast": "forward_sync_buffers=True",
}
_JOIN = {
    "initial": "",
    "effective": "divide_by_initial_world_size=False",
    "throwing": "throw_on_early_termination=True",
    "off": "enable=False",
}
_FLAGS = (
    *("find_unused_parameters", "static_graph", "gradient_as_bucket_view"),
    *("skip_all_reduce_unused_params", "batched_grad_copy", "lazy_bucket_allocation"),
)


def options(spec: DDP, *, has_buffers: bool) -> list[str]:
    """The keyword arguments of ``DistributedDataParallel`` that differ from its defaults."""
    arguments = [f"{name}=True" for name in _FLAGS if getattr(spec, name)]
    arguments += [_BUCKETS[spec.buckets]] if spec.buckets != "default" else []
    arguments += [_BUFFERS[spec.buffers]] if has_buffers or spec.buffers != "local" else []
    return arguments + (["init_sync=False"] if spec.initial == "unsynced" else [])


def hook_lines(spec: DDP, module: str, group: str) -> list[str]:
    """Registers the communication hook on ``module``, if there is one."""
    if spec.hook is None:
        return []
    if spec.hook == "allreduce":
        return [f"{module}.register_comm_hook({group}, allreduce_hook)"]
    return [
        "def average_hook(group, bucket):",
        "    summed = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()",
        "    return summed.then(lambda summed: summed.value()[0] / dist.get_world_size(group))",
        f"{module}.register_comm_hook({group}, average_hook)",
    ]


def _method_lines(spec: DDP, ddp: str) -> list[str]:
    """What is set on ``ddp`` once it is constructed; nobody leaves the join context."""
    lines = (
        [f"{ddp}.require_manual_backward_finalization = True"] if spec.manual_finalization else []
    )
    return lines + ([f"{join_call(spec, ddp)}.__enter__()"] if spec.join is not None else [])


def join_call(spec: DDP, ddp: str) -> str:
    """Make the context that the case trains in."""
    return f"{ddp}.join({_JOIN[spec.join] if spec.join else ''})"


def initial_lines(case: Case, tensors: str) -> list[str]:
    """Takes their values from all ranks but the first, before DDP synchronises them."""
    if case.ddp.initial != "first_rank":
        return []
    return ["if rank > 0:", f"    for tensor in {tensors}:", "        tensor.data.zero_()"]


def arguments(case: Case, names: MeshNames) -> list[str]:
    """Buffers, if there are any, are left alone as the other engines do, unless the case says
    otherwise.
    """
    listed = options(case.ddp, has_buffers=bool(facts(case).batch_norms))
    if case.ddp.device_mesh:
        listed.append("device_mesh=mesh")
    elif not names.flat:
        listed.append(names.process_group)
    if case.inputs.on_host:
        listed.append('device_ids=None if device == "cpu" else [torch.cuda.current_device()]')
    return listed


def group(names: MeshNames) -> str:
    """Return the process group that a hook is registered with."""
    return "None" if names.flat else "group"


class DDPScript(Script):
    """Puts ``DistributedDataParallel`` around the model."""

    variable = "ddp"

    @override
    def takes_mesh(self, case: Case) -> bool:
        return case.ddp.device_mesh

    @override
    def around_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        listed = [model, *arguments(case, names)]
        buffers = f", *{model}.buffers()" if case.ddp.buffers != "local" else ""
        tensors = f"(*{model}.parameters(){buffers})" if buffers else f"{model}.parameters()"
        return [
            *initial_lines(case, tensors),
            *call_lines(f"{variable} = DistributedDataParallel", listed),
            *hook_lines(case.ddp, variable, group(names)),
            *_method_lines(case.ddp, variable),
        ]

    @override
    def finalize_lines(self, case: Case, called: str) -> list[str]:
        """Waits for the reductions, where the case leaves that to the user."""
        return [f"{called}.finalize_backward()"] if case.ddp.manual_finalization else []


SCRIPT = DDPScript()
