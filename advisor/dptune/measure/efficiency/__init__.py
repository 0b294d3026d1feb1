"""Floating-point operations of the steps, and how much of the device's peak they reach."""
