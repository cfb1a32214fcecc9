def pareto(choices):
    """Equal ones once, by a dictionary; the cheapest so far as a running number."""
    cheapest = {}
    for choice in dict.fromkeys(choices):
        if choice.days not in cheapest or choice.usd < cheapest[choice.days].usd:
            cheapest[choice.days] = choice
    least, kept = float("inf"), []
    for days in sorted(cheapest):
        if cheapest[days].usd < least:
            least = cheapest[days].usd
            kept.append(cheapest[days])
    return kept
