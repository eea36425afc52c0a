"""What scripts of ``fully_shard`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, get_args

from typing_extensions import override

from fuzzshard.analysis.communication import words_of
from fuzzshard.analysis.groups import wrapped_modules
from fuzzshard.analysis.inferred import inferred
from fuzzshard.parts.options.wrap_group import When
from fuzzshard.parts.statements import assignment, at, call_lines
from fuzzshard.program.engine_script import EngineScript
from fuzzshard.program.setup import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuzzshard.case.case import Case, WrapGroup
    from fuzzshard.program.mesh import MeshNames
    from fuzzshard.subject.subject import Variation


def _wrap_lines(script: FullyShardScript, case: Case, model: str) -> list[str]:
    """Return the ``fully_shard`` calls, and the calls on what they make."""
    lines, ignored = [], []
    if case.added:
        for place in (place_of(case, model, path) for path in case.added):
            lines += [f"added.append({place})", f"del {place}"]
        lines = ["added = []  # to the model when it is wrapped", *lines]
    elif case.ignored:
        names = [fqn for fqn, owner in inferred(case).owners.items() if owner is None]
        lines += [*assignment("ignored_names", names)]
        lines.append(f"ignored = {{{model}.get_parameter(name) for name in ignored_names}}")
        ignored = ["ignored_params=ignored"]
    owners = inferred(case).owners.items()
    for index, group in enumerate(case.wrap):
        mine = [at(model, fqn) for fqn, owner in owners if owner == index]
        lines += group.preparing(model, mine)
        modules = ", ".join(at(model, path) for path in group.modules)
        listed = modules if len(group.modules) == 1 else f"[{modules}]"
        lines += call_lines(script.wraps, [listed, *script.arguments(case, group), *ignored])
    if "allocate" in words_of(case):
        # "NCCL communicator has not been initialized before mem pool creation" where nothing is
        # gathered before gradients are reduced (``registerMemPool``, ProcessGroupNCCL.cpp)
        lines.append(
            "dist.barrier(mesh.get_group(mesh.ndim - 1))  # NCCL allocates for a communicator "
            "that is there"
        )
    together: dict[str, list[str]] = {}
    for group in case.wrap:
        lines += _prefetch_lines(group, model)
        module = at(model, group.modules[0])
        lines += script.group_lines(case, group, module)
        for word in group.words():
            if word.of_several:
                together.setdefault(word.call, []).append(module)
            else:
                lines.append(f"{module}.{word.call}")
    lines += [f"{call}([{', '.join(modules)}])" for call, modules in together.items()]
    if case.finalize is not None:
        lines.append(f"{model}.set_manual_backward_finalization(True)")
    for path in (path for group in case.wrap for path in group.modules):
        if (block := inferred(case).by_method.get(path)) is not None:
            lines.append(f'register_fsdp_forward_method({at(model, path)}, "{block.method}")')
    return lines


def _prefetch_lines(group: WrapGroup, model: str) -> list[str]:
    lists = {when: group.prefetched(when) for when in get_args(When)}
    return [
        f"{at(model, group.modules[0])}.set_modules_to_{when}_prefetch"
        f"([{', '.join(at(model, path) for path in paths)}])"
        for when, paths in lists.items()
        if paths
    ]


class FullyShardScript(EngineScript):
    """Applies the wrap groups in order."""

    sources = """
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method, share_comm_ctx
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
"""
    has_dtensors = wraps_blocks = True
    wraps: ClassVar[str] = "fully_shard"
    """The function that makes a group."""

    def arguments(self, case: Case, group: WrapGroup) -> list[str]:
        """Return what makes a group beside its modules."""
        return [f"mesh={self.mesh_of(case, group)}", *group.arguments()]

    def mesh_of(self, case: Case, group: WrapGroup) -> str:
        """Return the mesh that a group is given."""
        return "mesh"

    def group_lines(self, case: Case, group: WrapGroup, module: str) -> list[str]:
        """Return what else is called on the ``module`` of a group."""
        return []

    @override
    def moves_inputs(self, case: Case, target: str) -> bool:
        return target in wrapped_modules(case)

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = _wrap_lines(self, case, model)
        places = [place_of(case, model, path) for path in case.added]
        lines += [f"{place} = added[{index}]" for index, place in enumerate(places)]
        if case.init == "meta":
            lines.append(f"materialize({model})")
        owners = inferred(case).owners.items()
        # whose weight cannot be computed of a tensor and a DTensor
        mixed = {fqn.partition(".parametrizations.")[0] for fqn in case.ignored}
        for index, group in enumerate(case.wrap):
            if not group.drawn:
                continue
            mine = dict.fromkeys(f.rpartition(".")[0] for f, owner in owners if owner == index)
            drawn = [at(model, path) for path in mine if path not in mixed]
            if drawn:
                modules = ", ".join(drawn)
                lines += call_lines("draw", [f"[{modules}]", f'"{group.drawn}"'])
        return lines + ([f'{model}.compile(backend="{case.compile}")'] if case.compile else [])

    @override
    def model_lines(self, blocks: Sequence[str], variation: Variation) -> list[str]:
        told = ["mesh=mesh"]
        if variation.reshard is not None:
            told.append(f"reshard_after_forward={variation.reshard}")
        lines = []
        if variation.param_dtype:
            dtypes = f"param_dtype=torch.{variation.param_dtype}, reduce_dtype=torch.float32"
            lines.append(f"policy = MixedPrecisionPolicy({dtypes})")
            told.append("mp_policy=policy")
        calls = (f"fully_shard({block}, {', '.join(told)})" for block in (*blocks, "model"))
        return [*lines, *calls]

    @override
    def finalize_lines(self, case: Case, called: str) -> list[str]:
        waits = "finalize_backward(async_op=True).wait()"
        call = waits if case.finalize == "async" else "finalize_backward()"
        return [f"{called}.{call}"] if case.finalize is not None and case.wrap else []


SCRIPT = FullyShardScript()
