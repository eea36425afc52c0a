"""``DistributedDataParallel``. This file imports no torch."""
