"""The sandbox: where untrusted code runs, and the plain data that comes back."""
