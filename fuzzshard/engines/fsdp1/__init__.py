"""``FullyShardedDataParallel`` (FSDP1). This file imports no torch."""
