"""One file per way to train a model."""
