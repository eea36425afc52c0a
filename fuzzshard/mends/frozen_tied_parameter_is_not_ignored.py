"""A frozen parameter with two names stays in the state dict under the second one.

``_get_model_state_dict`` (``torch/distributed/checkpoint/state_dict.py``) removes the names of
frozen parameters, as ``model.named_parameters()`` gives them. That gives one name of a parameter
which is registered at two places; ``state_dict()`` has both. All names are to be removed.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "get_model_state_dict: ignore_frozen_params keeps the second name of a tied parameter"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "``ignore_frozen_params``: if the value is True, the returned state_dict won't contain any "
    "frozen parameters -- the ``requires_grad`` is False.",
    "StateDictOptions",
)
SETUP = (
    "A model with tied embeddings is fine-tuned by adapters, and only those are saved. The "
    "embedding is in every checkpoint."
)
WORKAROUND = "Remove the second name from the state dict."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
model[1].weight = model[0].weight
model.requires_grad_(False)
state = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=True))
assert not state, [*state]
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="get_model_state_dict ignore_frozen_params tied shared parameters kept in state dict",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:_get_model_state_dict",
        "for key, param in model.named_parameters():",
        "for key, param in model.named_parameters(remove_duplicate=False):",
    ),
    Edit(
        "torch.distributed.checkpoint.state_dict:_get_model_state_dict",
        "state_dict.pop(fqn)",
        "state_dict.pop(fqn, None)",
    ),
)
