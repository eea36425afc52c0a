"""DDP does not synchronise parameters when it is constructed."""

from torch.nn.parallel import distributed


def apply() -> None:
    distributed._sync_module_states = lambda *args, **kwargs: None
