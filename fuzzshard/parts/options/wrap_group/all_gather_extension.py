"""``fsdp_pre_all_gather`` and ``fsdp_post_all_gather`` of parameters, as float8 training has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups, Reasons, Told
from fuzzshard.parts.options.wrap_group import GroupOption, Trait


class _Extension(NamedTuple):
    """A class of tensors: the tensors that it gathers of ``self``, and the values of those that
    arrive; what that makes of the values of a whole parameter ``p``, if they are others.
    """

    name: str
    gathered: str
    values: str
    rounded: str = ""


_FLOAT8 = "({} * 16).clamp(-448, 448).to(torch.float8_e4m3fn)"
"""The largest number of this dtype is 448, and what is larger would be cast to NaN."""
_EXTENSIONS = {
    "negated": _Extension("Negated", "[-self.plain]", "-gathered[0]"),
    "signs_apart": _Extension(
        "SignsApart",
        "[self.plain.abs(), torch.signbit(self.plain).to(torch.int8)]",
        "torch.where(gathered[1] == 1, -gathered[0], gathered[0])",
    ),
    "float8": _Extension(
        "Float8",
        f"[{_FLOAT8.format('self.plain')}.view(torch.uint8)]",
        "gathered[0].view(torch.float8_e4m3fn).float() / 16",
        rounded=f"({_FLOAT8.format('p')}.float() / 16).to(p.dtype)",
    ),
}
_SOURCE = """\
class {name}(torch.Tensor):  # a parameter that holds a plain tensor
    KEPT = (
        *("as_strided", "clone", "copy_", "detach", "empty_like", "new_zeros"),
        *("slice", "split", "view", "_pin_memory", "_to_copy"),
        *("narrow", "to"),  # inference_mode does not take these apart
    )

    @staticmethod
    def __new__(cls, plain):
        told = dict(dtype=plain.dtype, device=plain.device, requires_grad=plain.requires_grad)
        strides, offset = plain.stride(), plain.storage_offset()
        with torch.inference_mode(plain.is_inference()):  # it is what its values are
            return cls._make_wrapper_subclass(cls, plain.size(), strides, offset, **told)

    def __init__(self, plain):
        self.plain = plain

    @classmethod
    def extend(cls, model, param):
        if isinstance(param, DTensor):
            layout = dict(shape=param.shape, stride=param.stride(), run_check=False)
            local = cls(param._local_tensor.detach())
            data = DTensor.from_local(local, param.device_mesh, param.placements, **layout)
        else:
            data = cls(param.detach())
        extended = nn.Parameter(data, param.requires_grad)
        for module in model.modules():
            for name, p in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
                if p is param:  # ties stay
                    setattr(module, name, extended)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        args, kwargs = tree_map_only(cls, lambda t: t.plain, (args, kwargs or {{}}))
        out = func(*args, **kwargs)
        if func.overloadpacket.__name__ not in cls.KEPT:
            return out
        return tree_map_only(torch.Tensor, cls, out)

    def __tensor_flatten__(self):
        return ["plain"], None

    @classmethod
    def __tensor_unflatten__(cls, tensors, context, size, stride):
        return cls(tensors["plain"])

    def __reduce_ex__(self, protocol):  # saved as what it holds
        return self.plain.__reduce_ex__(protocol)

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        missing = max(-(-outer_size[0] // mesh.size()) - len(self), 0)  # all ranks gather equally
        tensors = {gathered}
        padded = [torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) for t in tensors]
        return tuple(padded), outer_size

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        gathered = [t.flatten()[: metadata.numel()].view(metadata) for t in outputs]
        values = ({values}).to(param_dtype)
        if out is None:
            return values, (values,)
        local = out._local_tensor if isinstance(out, DTensor) else out
        counted = () if local.is_inference() else (local,)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(counted):
            local.copy_(values)

"""


class AllGatherExtension(GroupOption):
    """Parameters whose shards are transformed before they are gathered, and back after that.

    "all-gather-inputs = pre-all-gather-transform(sharded-parameter)" and "unsharded-parameter =
    post-all-gather-transform(all-gather-outputs)" ([Note: FSDP tensors], _fsdp_param.py). The
    sharded local tensor has ``fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module,
    mp_policy)``, which returns the tensors to gather and "User-defined metadata passed from pre to
    post-all-gather"; where a parameter "is unevenly sharded", it "must return all-gather inputs
    with the padded sharded size". ``fsdp_post_all_gather(self, all_gather_outputs, metadata,
    param_dtype, *, out=None)`` returns the unsharded tensor and the tensors whose memory FSDP
    frees; given ``out``, the unsharded parameter, it writes there and returns nothing: "we
    construct the unsharded parameter object once and write to it in-place thereafter" ([Note: FSDP
    and autograd]).

    Where a sign is changed and changed back, no bit of a value differs from plain training,
    whatever its dtype is: ``negated`` gathers one tensor, ``signs_apart`` two of different dtypes,
    as "quantized data and scales" are. ``float8`` gathers the bytes of ``float8_e4m3fn``, with the
    scale 16: modules compute with rounded values, and the gradients of these train the parameter
    itself. As the scale is the same for every shard, what an element is rounded to depends on that
    element alone. So the reference rounds whole parameters by the same expression, and values are
    compared as those of any other case: where nothing else is rounded, bits must be equal.

    A wrapper subclass has the methods, as in torchao (``WeightWithDynamicFloat8CastTensor``): what
    is set on one tensor is lost with it in ``to_empty``, ``load_state_dict(assign=True)`` or a
    cast.
    """

    sources = "".join(_SOURCE.format(**each._asdict()) for each in _EXTENSIONS.values())
    name, place = "all_gather_extension", 4
    extension = Choice("all_gather_extension", 12, place=102)
    prefix = "all_gather:"
    meanings = {
        "all_gather:negated": "parameters with fsdp_pre_all_gather, which gather one tensor",
        "all_gather:signs_apart": "parameters with fsdp_pre_all_gather, which gather two tensors",
        "all_gather:float8": "parameters with fsdp_pre_all_gather, which gather float8",
    }

    @override
    def does(self, value: str | None) -> tuple[Trait, ...]:
        return ("gathers_several",) if value == "signs_apart" else ()

    @override
    def rounding(self, value: str | None) -> str:
        return _EXTENSIONS[value].rounded if value else ""

    @override
    def prepares(self, value: str | None, model: str, parameters: Sequence[str]) -> list[str]:
        if not value:
            return []
        return [f"{_EXTENSIONS[value].name}.extend({model}, {p})" for p in parameters]

    @override
    def misfits(self, value: str | None, told: Told) -> Reasons:
        # ``FSDPParam.all_gather_inputs`` (_fsdp_param.py) raises NotImplementedError
        shard = told.case.mesh.shard
        if value and 1 < told.group.after_forward(shard).ranks < shard:
            yield (
                "parameters with fsdp_pre_all_gather are resharded to a smaller mesh",
                "use True or False as reshard_after_forward",
            )

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        kind = drawing.tape.pick(
            [k for k, each in _EXTENSIONS.items() if drawing.applies_groups or not each.rounded]
        )
        most = drawing.tape.chance(70)

        def drawn(index: int, present: str | None) -> str | None:
            fits = not any(self.misfits(kind, drawing.told(drawing.case.wrap, index)))
            return kind if fits and (most or drawing.tape.chance(50)) else present

        return drawn
