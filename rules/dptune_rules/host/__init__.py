"""Rules about the host: launching kernels, garbage collection, updating parameters, work of the script."""
