"""fuzzshard: a property-based randomized fuzzer for PyTorch's data-parallel training.

Importing this package never imports torch; only rank processes and generated scripts do.
"""

__version__ = "0.1.0"
