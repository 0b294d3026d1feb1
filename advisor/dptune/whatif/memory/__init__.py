"""Whether a change fits: the peak memory of a rank after it, by components."""
