"""Costs that no other rule explains."""
