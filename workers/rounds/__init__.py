"""Publish a round of attempts, finish it, aggregate the run."""
