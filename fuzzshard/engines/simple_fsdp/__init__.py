"""SimpleFSDP: DTensors that modules redistribute. This file imports no torch."""
