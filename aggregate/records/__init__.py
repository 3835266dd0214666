"""Stored outcomes of attempts, alone and as tables."""
