"""Step models of runs whose gradients are averaged by gloo on CPUs."""
