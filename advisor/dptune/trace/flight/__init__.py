"""Dumps of torch's flight recorder: the last collectives of each rank, of NCCL or gloo, as pickle or JSON."""
