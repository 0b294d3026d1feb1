"""Starts the user's script, finds its steps, records."""
