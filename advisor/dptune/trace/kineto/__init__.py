"""The format of torch.profiler: bytes to columns. Another input format is a sibling of this package."""
