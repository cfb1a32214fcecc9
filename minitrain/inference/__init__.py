"""A trained model in use: sampling from it."""
