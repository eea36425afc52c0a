"""The HTML report of campaigns: one self-contained file."""
