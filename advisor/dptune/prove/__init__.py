"""Runs A and B as processes of their own, in turn, and decides: better, worse, inconclusive."""
