"""Upstream's own tests of data-parallel training as cases: each test a row, each point of its grid
a cell.

``PYTHONPATH=benchmarks python -m upstream corpus/upstream`` writes the tables there. A cell keeps
the test's model, dims, wrapping, mesh, optimizer and iterations; what differs is said in its row.
"""
