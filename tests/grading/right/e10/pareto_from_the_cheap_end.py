def pareto(choices):
    """From the cheapest to the dearest: a dearer one must be faster than all before."""
    kept, fastest = [], float("inf")
    for choice in sorted(choices, key=lambda c: (c.usd, c.days)):
        if choice.days < fastest:
            kept.append(choice)
            fastest = choice.days
    kept.reverse()
    return kept
