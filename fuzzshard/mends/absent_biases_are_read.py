"""A recurrent module without bias on CUDA adds what follows its weights in memory as biases.

cuDNN's layout of the weights of an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` has biases behind the
matrices always. torch copies weights into a buffer of that layout, unless their storage is one
already, and looks at the matrices alone to find out if there are no biases
(``try_get_weight_buf`` in ``aten/src/ATen/native/cudnn/RNN.cpp``). Matrices at the start of a
larger storage, such as the flat parameter of FSDP1, are taken for such a buffer. The biases of
zeros that ``flatten_parameters`` makes hide this, but it leaves ``bfloat16`` alone
(``CUDNN_TENSOR_DTYPES`` in ``torch/backends/cudnn/__init__.py``). The same comes of
``nn.utils.vector_to_parameters`` in any dtype. Weights without biases are to be copied.
"""

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "FSDP1: nn.LSTM(bias=False) in bfloat16 adds other parameters as its biases on CUDA"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``False``, then the layer does not use bias weights `b_ih` and `b_hh`.", "nn.LSTM"
)
SETUP = (
    "A unit of FSDP1 begins with an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` with ``bias=False``, "
    "has other parameters behind it and ``MixedPrecision(param_dtype=torch.bfloat16)``, on CUDA. "
    "Outputs are wrong: no error."
)
WORKAROUND = (
    "Wrap the recurrent module as a unit of its own, or call it within "
    "``torch.backends.cudnn.flags(enabled=False)``."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn

# The same without FSDP1, on CUDA
model = nn.Sequential(nn.LSTM(16, 4, bias=False), nn.Linear(64, 64)).cuda()
x = torch.randn(3, 4, 16, device="cuda")
before = model[0](x)[0]
flat = nn.utils.parameters_to_vector(model.parameters())
nn.utils.vector_to_parameters(flat, model.parameters())
torch.testing.assert_close(model[0](x)[0], before)  # equal weights, other outputs
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="cudnn LSTM bias=False wrong output weights view of larger storage "
        "try_get_weight_buf vector_to_parameters",
        date="2026-11-28",
    ),
    Public(
        query="nn.LSTM bias=False CUDA incorrect result vector_to_parameters flat parameters "
        "cudnn reads beyond weights",
        date="2026-11-28",
    ),
    Public(
        query="cudnn RNN no bias flattened weights garbage bias uninitialised weight_buf",
        date="2026-11-28",
    ),
)


def apply(patch: Patch) -> None:
    """Copies weights on CUDA that have no biases, so that nothing is behind them.

    Dynamo leaves recurrent modules to eager torch, and so it has to leave this.
    """
    from torch import _VF
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameExecStrategy(
        eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
    )

    def on_copies(function: Any) -> Any:
        def called(*args: Any) -> Any:
            has_biases = list(map(type, args)).index(bool)
            weights = args[has_biases - 1]
            if not args[has_biases] and weights[0].is_cuda:
                weights = [w.clone() for w in weights]
                args = (*args[: has_biases - 1], weights, *args[has_biases:])
            return function(*args)

        eval_frame.set_code_exec_strategy(called.__code__, skip)
        return called

    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        patch(_VF, name, on_copies(getattr(_VF, name)))
