"""Run what nobody vouches for: the worker's side."""
