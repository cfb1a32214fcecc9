"""The corpus of known entropy: worlds with a consistent state, and their storyteller."""
