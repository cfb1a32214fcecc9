"""`python -m minitrain load`: a load test at increasing request rates."""
