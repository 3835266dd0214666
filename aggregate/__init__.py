"""Turn attempt records into pass rates, paired differences, an artifact and reports."""
