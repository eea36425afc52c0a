"""DDP with ``ZeroRedundancyOptimizer``. This file imports no torch."""
