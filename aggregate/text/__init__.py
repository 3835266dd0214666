"""Files, numbers and text, written and read safely."""
