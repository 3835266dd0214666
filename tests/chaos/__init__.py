"""Hurt real servers, workers and producers on a seeded schedule, then check what DESIGN promises."""
