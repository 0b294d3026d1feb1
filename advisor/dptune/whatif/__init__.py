"""Figures and changes -> a predicted step."""
