"""Bytes -> columns; ranks -> a run."""
