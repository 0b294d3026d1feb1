"""Columns -> figures."""
