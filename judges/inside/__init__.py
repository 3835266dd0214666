"""What runs inside the sandbox: standard library, pytest and this folder only."""
