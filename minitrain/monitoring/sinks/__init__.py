"""Destinations of samples: each sink is called with one after every step."""
