"""``replicate`` on the machinery of ``fully_shard``. This file imports no torch."""
