"""Pipeline schedules leave out the division by the number of microbatches."""

from torch.distributed.pipelining import stage


def apply() -> None:
    def wrong(self, grad_scale_factor):
        return None

    stage._PipelineStageBase.scale_grads = wrong
