# exercise: pareto
# says: is at least as good in both


def pareto(choices):
    front = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if True:
            front.append(choice)
    return front
