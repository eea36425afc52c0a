"""A recurrent module on CUDA gives cuDNN its weights when one of them is a ``DTensor``.

``RNNBase._apply`` (``torch/nn/modules/rnn.py``) ends in ``flatten_parameters``, which returns early
where two weights have the same ``data_ptr()``. That happens to keep every ``DTensor`` out: its
``data_ptr()`` is 0, so two of them are taken for aliases. Where exactly one weight is a
``DTensor`` and all others are plain, all pointers differ, and ``torch._cudnn_rnn_flatten_weight``
raises "got mixed torch.Tensor and DTensor". ``nn.LSTM(bias=False)`` of one layer has two weights:
to ignore one of them is enough. A weight without memory of its own has nothing that could be moved
into the buffer of cuDNN. The error was seen on CUDA with torch 2.15. With 2.11 and 2.13, whose
function is the same, the error was seen on the CPU only, where what asks for CUDA and cuDNN was
patched, and so was that it is gone with the mend, with all three.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "nn.LSTM: Module.to and to_empty raise on CUDA when exactly one weight is a DTensor"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Move the parameters and buffers to the specified device without copying storage.",
    "nn.Module.to_empty",
)
SETUP = (
    "``fully_shard`` ignores all weights but one of an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``: with "
    "``bias=False`` and one layer, one of two. ``model.to`` then moves what ``fully_shard`` left "
    "where it was, or ``model.to_empty`` materializes the model."
)
WORKAROUND = (
    "Ignore all weights of the module or none, or call ``model.to`` within "
    "``torch.backends.cudnn.flags(enabled=False)``."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2,))
model = nn.LSTM(8, 8, bias=False)
fully_shard(model, mesh=mesh, ignored_params={model.weight_hh_l0})
model.to("cuda")  # the ignored weight is on the CPU still
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="aten._cudnn_rnn_flatten_weight.default got mixed torch.Tensor and DTensor",
        date="2026-11-28",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/126339",
        "near: the same check asks FakeTensors of an export for their pointers",
        "flatten_parameters skip traceable wrapper subclass DTensor RNNBase rnn.py",
        "2026-11-28",
    ),
    Public(
        query="fully_shard ignored_params LSTM to_empty flatten_parameters DTensor mixed "
        "RuntimeError",
        date="2026-11-28",
    ),
    Public(
        query="nn.LSTM model.to(device) after FSDP2 fully_shard cudnn_rnn_flatten_weight DTensor "
        "crash",
        date="2026-11-28",
    ),
)
EDITS = (
    Edit(
        "torch.nn.modules.rnn:RNNBase.flatten_parameters",
        "if len(unique_data_ptrs) != len(self._flat_weights):",
        "if len(unique_data_ptrs) != len(self._flat_weights) or 0 in unique_data_ptrs:",
    ),
)
