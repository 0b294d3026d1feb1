"""What each device did: operations, the account of their time, copies, kernels, memory."""
