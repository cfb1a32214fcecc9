# exercise: pareto
# says: is n²


def pareto(choices):
    """Sorted once, but each against all that are kept: quick while the front is short."""
    front = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not any(kept.usd <= choice.usd for kept in front):
            front.append(choice)
    return front
