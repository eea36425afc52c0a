"""Races between CUDA streams, found by the order of what was launched and not by luck.

:mod:`.events` is what happened to streams and memory in one run, :mod:`.clocks` finds what it
leaves without order. :mod:`.recorder` sees what operators access, :mod:`.cuda` what orders them on
CUDA, and :mod:`.simulated` runs ``fully_shard`` on the CPU over streams and an allocator that
exist in Python only.
"""
