"""Figures of one run or set of runs against those of another."""
