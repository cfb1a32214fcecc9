# exercise: pareto
# differs: sweeps along the dollars from the cheapest on, keeps whoever is faster than all before,
# and turns the list round
def pareto(choices: list) -> list:
    order = sorted(range(len(choices)), key=lambda i: (choices[i].usd, choices[i].days))
    fastest = float("inf")
    kept = []
    for i in order:
        if choices[i].days < fastest:
            fastest = choices[i].days
            kept.append(choices[i])
    kept.reverse()
    return kept
