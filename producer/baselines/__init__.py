"""Baselines that are not run again: cached, or blessed."""
