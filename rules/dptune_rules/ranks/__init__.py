"""Ranks that hold up the others."""
