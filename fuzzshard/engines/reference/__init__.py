"""The plain module, whose gradients an all-reduce averages. This file imports no torch."""
