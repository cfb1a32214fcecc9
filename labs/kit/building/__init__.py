"""Builds the learner's notebook and the executed solution from a master."""
