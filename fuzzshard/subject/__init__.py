"""A model of the user's own: what trains it, plain and parallelised, on ranks, and how the two
are compared.
"""
