"""What ranks exchange: collectives matched over ranks, waiting, lag, overlap and links."""
