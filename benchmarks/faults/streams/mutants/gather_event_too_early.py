"""The event of an all-gather is recorded before it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from _plant import plant


def apply() -> None:
    plant(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather",
        (
            """
            with device_handle.stream(all_gather_stream):
                all_gather_work = all_gather_comm(
                    output_tensor=all_gather_output,
                    input_tensor=all_gather_input,
                    group=group,
                    async_op=async_op,
                )
                all_gather_event = all_gather_stream.record_event()
            """,
            """
            with device_handle.stream(all_gather_stream):
                planted_line_reached()
                all_gather_event = all_gather_stream.record_event()
                all_gather_work = all_gather_comm(
                    output_tensor=all_gather_output,
                    input_tensor=all_gather_input,
                    group=group,
                    async_op=async_op,
                )
            """,
        ),
    )
