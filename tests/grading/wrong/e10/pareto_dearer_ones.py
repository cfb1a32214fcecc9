# exercise: pareto
# says: is at least as good in both | is missing


def pareto(choices):
    front = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not front or choice.usd > front[-1].usd:
            front.append(choice)
    return front
