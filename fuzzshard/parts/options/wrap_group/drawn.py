"""How values are drawn once a model is sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups
from fuzzshard.parts.options.wrap_group import GroupOption, Init

"""What nothing draws is NaN, replicas must be equal, and ``dirac_`` draws nothing by chance.

Replicas on ranks that draw as many numbers: "Currently we only support correct RNG on
cuda/cuda-like devices" (``is_rng_supported_mesh``, torch/distributed/tensor/_random.py). So on the
CPU ranks go on with other numbers after a parameter of which they have parts of different sizes.
"""

INITS = get_args(Init)


class Drawn(GroupOption):
    """By what its parameters are drawn once all groups are there, as is done to a model that was
    built on the meta device.
    """

    name, place = "drawn", 9
    extension = Choice("drawn", 8, place=103)
    sources = """
def shards(parameters, group):  # meshes differ where some are ignored
    return [
        (p, placement.dim)
        for p in parameters if isinstance(p, DTensor)
        for axis, placement in enumerate(p.placements)
        if hasattr(placement, "dim") and p.device_mesh.get_group(axis) == group
    ]


def draw(modules, init):  # whatever is drawn wrongly changes the values that are there again then
    for module in modules:
        module = getattr(module, "_checkpoint_wrapped_module", module)
        parameters = list(module.parameters(recurse=False))
        values = [p.detach().clone() for p in parameters]
        torch.manual_seed(0)
        with torch.no_grad():
            for p in parameters:
                p.fill_(float("nan"))
            if hasattr(module, init):  # reset_parameters
                getattr(module, init)()
            else:
                for p in parameters:
                    fits = p.dim() > (2 if init == "dirac_" else 1) and p.dtype.itemsize > 2
                    (getattr(nn.init, init, nn.init.normal_) if fits else nn.init.normal_)(p)
            for p, value in zip(parameters, values):
                if isinstance(p, DTensor):
                    drawn = p.detach().to(device).full_tensor()
                    due = drawn.clone()
                    for axis in range(p.device_mesh.ndim):
                        group, size = p.device_mesh.get_group(axis), p.device_mesh.size(axis)
                        if all(q.shape[d] % size == 0 for q, d in shards(parameters, group)):
                            dist.broadcast(due, group=group, group_src=0)
                    if init == "dirac_" and p.dim() > 2:
                        nn.init.dirac_(due)
                    value = value + (drawn - due).abs().sum().item()
                p.copy_(value)
"""
    prefix = "drawn:"
    meanings = {f"drawn:{init}": f"sharded parameters drawn by {init}" for init in INITS}

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        # the generator that DTensor makes on CUDA broadcasts its state to ranks that idle
        return lambda index, present: present if drawing.cuda else drawing.tape.pick(INITS)
