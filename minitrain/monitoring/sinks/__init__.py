"""Where samples go: each sink is called with one after every step."""
