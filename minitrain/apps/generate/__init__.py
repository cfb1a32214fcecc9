"""`python -m minitrain generate`."""
