"""Links between ranks, and how the training is spread over them."""
