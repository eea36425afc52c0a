"""Options of engines: one file each, in a folder for each part of a case that has them."""
