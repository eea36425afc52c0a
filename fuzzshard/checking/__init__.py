"""Checking a model of the user's own: worlds for its meshes, and one report. No torch import."""
