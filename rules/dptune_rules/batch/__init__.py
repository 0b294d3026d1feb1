"""How many samples a step takes, and the learning rate that goes with it."""
