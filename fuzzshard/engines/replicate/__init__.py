"""``replicate``: composable DDP. This file imports no torch."""
