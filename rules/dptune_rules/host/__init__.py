"""What the host does in a step beside feeding it: launching, collecting garbage, updating parameters."""
