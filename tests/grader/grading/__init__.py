"""Grading: submissions read, checks run against them, verdicts and reports."""
