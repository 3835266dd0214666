"""A run as its owner sees it: estimated, started, watched, brought home."""
