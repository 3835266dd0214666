"""Run untrusted commands in a sandbox: the worker's side."""
