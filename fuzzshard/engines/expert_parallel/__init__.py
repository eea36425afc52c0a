"""Experts that are sharded over the ranks, under ``fully_shard``. This file imports no torch."""
