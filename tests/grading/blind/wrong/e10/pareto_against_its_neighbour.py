# exercise: pareto
# says: keep a choice only if it is cheaper than all that are as fast
# each choice is compared with the one just before it, not with the cheapest so far, so after a
# dear one a choice stays that an earlier one beats ("Those that no other beats").

def pareto(choices: list) -> list:
    front, before = [], float("inf")
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if choice.usd < before:
            front.append(choice)
        before = choice.usd
    return front
