"""Case -> PyTorch source -> nn.Module."""
