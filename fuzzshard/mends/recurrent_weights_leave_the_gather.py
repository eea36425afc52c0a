"""A recurrent module on CUDA computes with the weights of its first forward for ever.

When ``forward`` of an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` finds other parameters than before
(``RNNBase._update_flat_weights`` in ``torch/nn/modules/rnn.py``), ``flatten_parameters`` moves
their data into one new buffer for cuDNN. Under ``fully_shard`` these are the unsharded parameters,
which are views of the output of the all-gather (``FSDPParam.init_unsharded_param`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) and are made once. Later all-gathers write
to the output that nothing refers to any more: every later forward and backward uses the weights
that the module had at first, whatever the optimizer does to the sharded ones, and the buffer is
never freed. A module does not own weights that it finds in its forward, so it must not move them.

Weights of FSDP1 that stay where they are need the mend of ``absent_biases_are_read`` as well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: nn.LSTM and nn.GRU compute with their initial weights for ever on CUDA"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Before forward, FSDP all-gathers the sharded parameters across the data-parallel workers to "
    "get the unsharded parameters for forward computation.",
    "fully_shard",
)
SETUP = (
    "A model on CUDA has an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``, cuDNN is on, as it is by "
    "default, and ``fully_shard`` or ``replicate`` manages it. The loss falls more slowly, if at "
    "all: no error."
)
WORKAROUND = (
    "Call the module within ``torch.backends.cudnn.flags(enabled=False)``, or set its "
    "``flatten_parameters`` to a function that does nothing."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 fully_shard LSTM cudnn wrong output stale weights flatten_parameters "
        "unsharded param",
        date="2026-11-27",
    ),
    Public(
        query="_update_flat_weights _weights_have_changed cudnn RNN flatten weights FSDP",
        date="2026-11-27",
    ),
    Public(
        query="FSDP LSTM GRU RNN does not train flatten_parameters cuDNN fully_shard",
        date="2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.nn.modules.rnn:RNNBase._update_flat_weights",
        """
                self._init_flat_weights()
        """,
        """
                with torch.backends.cudnn.flags(enabled=False):  # flattens nothing
                    self._init_flat_weights()
        """,
    ),
)
