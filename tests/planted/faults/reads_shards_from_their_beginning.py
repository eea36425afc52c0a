"""A checkpoint is read as if each shard to load began where one that was saved begins."""

import dataclasses

import torch
from torch.distributed.checkpoint import planner_helpers


def apply() -> None:
    items = planner_helpers.create_read_items_for_chunk_list

    def wrong(*args):
        for item in items(*args):
            beginning = torch.Size([0] * len(item.storage_offsets))
            yield dataclasses.replace(item, storage_offsets=beginning)

    planner_helpers.create_read_items_for_chunk_list = lambda *args: [*wrong(*args)]
