"""``fully_shard`` of DTensors on the whole mesh. This file imports no torch."""
