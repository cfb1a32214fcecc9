"""`python -m minitrain load`: a server under more and more requests."""
