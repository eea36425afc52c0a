"""The Case: what an experiment is. Imports nothing of ours outside this package, and no torch."""
