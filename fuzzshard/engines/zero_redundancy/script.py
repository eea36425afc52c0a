"""What scripts of ``ZeroRedundancyOptimizer`` say."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.ddp.script import DDPScript
from fuzzshard.program.mesh import MeshNames


class ZeroRedundancyScript(DDPScript):
    """Puts it around the optimizer, too."""

    sources = (
        "from torch.distributed.algorithms.join import Join\n"
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
    )

    @override
    def join_text(self, case: Case, called: str, arguments: str) -> str:
        joinables = ", ".join([called, *case.optimizer.each])
        return f"Join([{joinables}]{arguments and ', '}{arguments})"

    @override
    def optimizer_call(self, kind: str, arguments: list[str], names: MeshNames) -> str:
        parameters, *options = arguments
        group = [] if names.flat else [names.process_group]
        own = ", ".join([parameters, f"optimizer_class={kind}", *group, *options])
        return f"ZeroRedundancyOptimizer({own})"


SCRIPT = ZeroRedundancyScript()
