"""The corpus of known entropy: worlds with a consistent state, their storyteller, and the scorer
that knows every odd.
"""
