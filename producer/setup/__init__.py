"""First steps: a new suite, what is missing on this machine, Flower."""
