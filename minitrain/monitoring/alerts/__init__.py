"""When to wake someone: expressions, rules with their sources, their state over time."""
