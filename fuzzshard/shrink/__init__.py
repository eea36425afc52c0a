"""Reduces a Case that shows a finding to a minimal one."""
