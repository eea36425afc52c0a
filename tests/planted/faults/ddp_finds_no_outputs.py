"""DDP looks for parameters that are used from no output of the forward, and so takes all for
unused.
"""

from torch.nn.parallel import distributed


def apply() -> None:
    distributed._find_tensors = lambda output: []
