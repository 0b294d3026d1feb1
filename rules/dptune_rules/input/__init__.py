"""Rules about getting batches to the device."""
