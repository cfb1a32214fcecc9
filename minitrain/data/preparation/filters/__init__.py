"""Quality filters: published rules, a language guess, a small classifier.

rules        named tests with their sources: Gopher's, C4's, FineWeb's; steps made of them
language     by the short words that every sentence has
classifier   texts like those you want, by a linear model over hashed n-grams
"""
