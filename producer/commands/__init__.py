"""The commands of `uplift`, a few to a file; each only parses, calls and prints."""
