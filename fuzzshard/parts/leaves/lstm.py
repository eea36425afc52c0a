"""``nn.LSTM``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Projection, draw_bias
from fuzzshard.parts.part import Shape

_RECURRENT = """
class Recurrent(nn.Module):
    def __init__(self, dim, hidden, bias=True):
        super().__init__()
        self.lstm = nn.LSTM(dim, hidden, bias=bias, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]
"""


class LSTM(Projection, tag="lstm", frozen=True, kw_only=True):
    """``nn.LSTM(width, out)`` of one layer along the sequence axis; needs ``Inputs.seq >= 1``.

    An ``nn.LSTM`` keeps its parameters in a list of its own as well, which it updates when one of
    them is set (``RNNBase.__setattr__``) or all of them are changed (``RNNBase._apply``). On CUDA
    "cudnn RNN backward can only be called in training mode" (aten/src/ATen/native/cudnn/RNN.cpp),
    and "Double backwards is not supported for CuDNN RNNs" (tools/autograd/derivatives.yaml).
    """

    complexity, noun, prefix = 20, "LSTM", "lstm"
    takes = ("sequence",)
    helpers = (_RECURRENT,)
    kinds = (
        Kind(
            "lstm",
            "an nn.LSTM",
            13,
            lambda d: LSTM(out=d.out, bias=draw_bias(d)),
            resizes=True,
            saves_result=True,
            excluded_by=("simple_fsdp",),
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"Recurrent({width}, {self.out}{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        gates = 4 * self.out
        shapes: dict[str, Shape] = {
            "lstm.weight_ih_l0": (gates, width),
            "lstm.weight_hh_l0": (gates, self.out),
        }
        biases: dict[str, Shape] = {"lstm.bias_ih_l0": (gates,), "lstm.bias_hh_l0": (gates,)}
        return shapes | biases if self.bias else shapes

    @override
    def lacks_backward(self, *, twice: bool, on_cuda: bool, in_evaluation: bool) -> str:
        if on_cuda and twice:
            return "cuDNN's recurrent modules have no backward of a backward"
        if on_cuda and in_evaluation:
            return "cuDNN's recurrent modules have no backward in evaluation mode"
        return ""
