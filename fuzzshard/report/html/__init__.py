"""The HTML report of campaigns: one self-contained file, with plots and with a drawing of each minimal case."""
