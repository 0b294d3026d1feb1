"""Two sides of a comparison: what differs, why, and whether it is more than noise."""
