# exercise: pareto
# says: every trade, not the one cheapest


def pareto(choices):
    return [min(choices, key=lambda c: (c.usd, c.days))]
