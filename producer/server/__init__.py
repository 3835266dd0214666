"""The server of a run: the broker that was named, or a private one."""
