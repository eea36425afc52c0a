"""``fully_shard`` (FSDP2). This file imports no torch."""
