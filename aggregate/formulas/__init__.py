"""Every formula, as plain functions."""
