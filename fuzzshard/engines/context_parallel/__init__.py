"""Attention over ranks that share positions, under ``fully_shard``. This file imports no torch."""
