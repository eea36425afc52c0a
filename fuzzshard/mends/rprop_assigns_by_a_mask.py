"""``torch.optim.Rprop`` raises when it steps sharded parameters.

It assigns by masks: ``grad[sign.eq(etaminus)] = 0`` (torch/optim/rprop.py). That calls
``index_put_``, whose rule for DTensors lets nothing be sharded along a dim that is indexed
(``index_put_single_dim_strategy`` in torch/distributed/tensor/_ops/_tensor_ops.py), and an
operator in place cannot gather first. Torch 2.15 calls ``masked_fill_`` for an assigned number,
which works on shards.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: torch.optim.Rprop raises when it steps sharded parameters"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "DTensor overrides the PyTorch operators to perform sharded computation and issue "
    "communications whenever necessary.",
    "torch.distributed.tensor.DTensor",
)
SETUP = "fully_shard with torch.optim.Rprop."
WORKAROUND = "Use torch 2.15, or another optimizer."
TORCH = Releases(since="2.13", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/172894",
        "brought: the rule of index_put",
        "Rprop DTensor index_put_ in-place operations that require placement changes are not "
        "supported boolean mask",
        "2026-11-30",
    ),
    Public(
        query="DTensor index_put_ boolean mask sharding strategy tensor[mask] = 0 sharded",
        date="2026-11-30",
    ),
)
_SIGNS = """
            sign[sign.gt(0)] = etaplus
            sign[sign.lt(0)] = etaminus
            sign[sign.eq(0)] = 1
"""
_FILLED_SIGNS = """
            sign.masked_fill_(sign.gt(0), etaplus)
            sign.masked_fill_(sign.lt(0), etaminus)
            sign.masked_fill_(sign.eq(0), 1)
"""
EDITS = (
    Edit("torch.optim.rprop:_single_tensor_rprop", _SIGNS, _FILLED_SIGNS),
    Edit(
        "torch.optim.rprop:_single_tensor_rprop",
        "grad[sign.eq(etaminus)] = 0",
        "grad.masked_fill_(sign.eq(etaminus), 0)",
    ),
    Edit("torch.optim.rprop:_multi_tensor_rprop", _SIGNS, _FILLED_SIGNS),
)
