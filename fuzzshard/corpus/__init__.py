"""Saved cases on disk, and their replay."""
