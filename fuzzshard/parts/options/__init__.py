"""Options of engines: a file, or of groups a folder, for each part of a case with options."""
