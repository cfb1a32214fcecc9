# exercise: pareto
# says: keep a choice only if it is cheaper than all that are as fast
# sorts by days only, so of two equally fast choices the dearer one is kept too if it comes
# first; the text says a choice stays only "if no other is at least as good in days and
# dollars".

def pareto(choices: list) -> list:
    front = []
    for choice in sorted(choices, key=lambda choice: choice.days):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
