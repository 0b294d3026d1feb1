"""Changes -> a diff of the user's script."""
