"""The sandbox: untrusted code runs in it, under limits, and plain data comes back."""
