# exercise: pareto
# says: of equal choices one is kept
# of two equal choices each is dropped because of the other, so none is left; the docstring: "of
# two that are equal, one is enough".

def pareto(choices: list) -> list:
    front = [
        one
        for one in choices
        if not any(
            other is not one and other.days <= one.days and other.usd <= one.usd
            for other in choices
        )
    ]
    return sorted(front, key=lambda choice: choice.days)
