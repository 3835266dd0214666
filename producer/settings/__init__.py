"""Every option of a run, and the config file."""
