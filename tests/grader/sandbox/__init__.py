"""The sandbox: runs untrusted code under limits, and returns plain data."""
