# exercise: pareto
# says: sorted(choices) makes a new list
# sorts the list that it was given; the docstring says that choices "stays as it is".

def pareto(choices: list) -> list:
    choices.sort(key=lambda choice: (choice.days, choice.usd))
    front = []
    for choice in choices:
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
