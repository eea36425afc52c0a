"""Interprets a schedule under one engine and records a Trace."""
