"""Rules about number formats and the hardware that computes them."""
