"""Quality filters: published rules, a language guess, a small classifier.

rules        published rules with their sources: Gopher's, C4's, FineWeb's; steps made of them
language     by the short words that every sentence contains
classifier   similarity to the texts you want, by a linear model over hashed n-grams
"""
