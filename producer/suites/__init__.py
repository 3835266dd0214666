"""Suites: read, check, and point at the mistake."""
