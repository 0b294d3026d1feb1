"""Communication between ranks: collectives matched over ranks, waiting, lag, overlap and links."""
