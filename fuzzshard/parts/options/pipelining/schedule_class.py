"""The class of the schedule: in which order stages run microbatches."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.pipelining import PipeliningOption


class ScheduleClass(PipeliningOption):
    """The class of the schedule, as the text that makes it says."""

    name, prefix, always_told = "schedule_class", "pipelining:", True
    texts = {
        "gpipe": "ScheduleGPipe",
        "1f1b": "Schedule1F1B",
        "interleaved_1f1b": "ScheduleInterleaved1F1B",
        "looped_bfs": "ScheduleLoopedBFS",
        "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
        "zbv_zero_bubble": "ScheduleZBVZeroBubble",
    }
    traits = {
        "1f1b": ("fills_pipeline",),
        "interleaved_1f1b": ("several_stages",),
        "looped_bfs": ("several_stages",),
        "interleaved_zero_bubble": ("several_stages", "zero_bubble"),
        "zbv_zero_bubble": ("several_stages", "v_shaped", "zero_bubble"),
    }
    meanings = {
        "pipelining:gpipe": "all forwards, then all backwards",
        "pipelining:1f1b": "a backward after each forward, once the pipeline is full",
        "pipelining:interleaved_1f1b": "the same with two stages a rank",
        "pipelining:looped_bfs": "all microbatches through the first stage of a rank, then the "
        "next",
        "pipelining:interleaved_zero_bubble": "gradients of weights fill the bubbles",
        "pipelining:zbv_zero_bubble": "the same, with stages that lie as a V over the ranks",
    }

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        """There are few models with modules for two stages on each rank."""
        weights = (2, 2, 3, 3, 3, 3)
        drawn: str = tape.weighted(tuple(zip(self.texts, weights, strict=True)))
        return drawn
