"""The corpus: cases and findings on disk, one JSON file each, read by every later version."""
