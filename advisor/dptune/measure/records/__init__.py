"""What comparing ranks takes of each: made where its trace is read, small enough to hold for thousands of ranks."""
