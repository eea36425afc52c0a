"""Upstream's own tests of data-parallel training as cases: each test a row, each point of its grid
a cell.

The tables here are written to ``corpus/upstream`` by ``python -m fuzzshard.upstream``. A cell
keeps the test's model, dims, wrapping, mesh, optimizer and iterations; what differs is said in its
row.
"""
