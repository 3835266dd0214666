"""A finished run for people and for other tools: HTML page, Markdown, JUnit XML, skill-creator workspace.

Everything that came from suites, models and judges is treated as hostile: it is shown as text and never runs.
"""
