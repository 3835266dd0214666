"""Suites made from what other tools left behind: one module a format, `found` for what they have in common."""
