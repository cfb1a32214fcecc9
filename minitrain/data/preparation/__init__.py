"""Raw text to what is worth training on, each step from scratch."""
