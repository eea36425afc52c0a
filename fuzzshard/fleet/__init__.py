"""Campaigns on the nodes of a Ray cluster that share no folder: their exchanges are mirrored."""
