"""Rules about collectives: gradients, buckets, groups."""
