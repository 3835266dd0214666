"""Model clients: one kind a file, all with the same shape."""
