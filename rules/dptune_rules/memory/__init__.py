"""Memory of the devices."""
