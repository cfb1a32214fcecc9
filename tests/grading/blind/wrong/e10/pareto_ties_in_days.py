# exercise: pareto
# says: keep a choice only if it is cheaper than all that are as fast
# the choices are sorted by days only, so of two with the same days the dearer one stays if it
# comes first, though the other beats it ("only if no other is at least as good in days *and*
# dollars").

def pareto(choices: list) -> list:
    front = []
    for choice in sorted(choices, key=lambda c: c.days):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
