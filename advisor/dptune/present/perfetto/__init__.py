"""A file for Perfetto: chosen ranks on one clock."""
