"""A run as Redis holds it: what producer and workers agree on."""
