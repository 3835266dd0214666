"""One attempt, from permission to record."""
