"""``replicate``: composable DDP, which hooks the module itself and is constructed by the first forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch import nn
from torch.distributed._composable.replicate import replicate
from typing_extensions import override

from fuzzshard.engines.ddp import DDP


class Replicate(DDP):
    """DDP without a wrapper: its hooks run around the forward of the root."""

    name: ClassVar[str] = "replicate"

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        return replicate(
            model,
            device_id=self.mesh.device,
            process_group=self.mesh.group,
            find_unused_parameters=True,
            broadcast_buffers=False,
        )

    @override
    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        module: Any = self.module
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)

    @override
    def call_target(self, path: str) -> Callable[..., Any]:
        """The root itself, whatever method its forward calls: another one would miss the hooks."""
        return super().call_target(path) if path else self.module
