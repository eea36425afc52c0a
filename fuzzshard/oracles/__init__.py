"""Rules over traces."""
