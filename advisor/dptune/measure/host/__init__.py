"""What the script's threads did: launches, blocking calls, and the code behind them."""
