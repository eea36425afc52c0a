"""Worlds: live rank processes that run cases one after another."""
