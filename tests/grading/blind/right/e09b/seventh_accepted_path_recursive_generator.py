# exercise: accepted_path
# differs: a recursive generator over lists of children; ngram_draft by the longest common end at
# each place; best_length by accumulate
from itertools import accumulate


def accepted_path(tokens, parents, choices):
    children = [[] for _ in choices]  # of the text, of node 0, …
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)

    def walk(at):
        for node in children[at + 1]:
            if tokens[node] == choices[at + 1]:
                yield node
                yield from walk(node)

    path = list(walk(-1))
    # the target's own token after the text and after each kept node is all that is new
    return path, [choices[node + 1] for node in (-1, *path)]


def ngram_draft(tokens, most, longest=3):
    def alike(place):
        """How many tokens before `place` are those of the end."""
        size = 0
        while size < min(longest, place) and tokens[place - 1 - size] == tokens[-1 - size]:
            size += 1
        return size

    places = range(1, len(tokens))
    size, place = max(((alike(place), place) for place in places), default=(0, 0))
    return list(tokens[place : place + most]) if size else []


def best_length(acceptance, draft_cost, passes):
    told = accumulate(acceptance**i for i in range(len(passes)))
    costs = (g * draft_cost + cost for g, cost in enumerate(passes))
    speeds = [tokens / cost for tokens, cost in zip(told, costs)]
    return max(range(len(speeds)), key=speeds.__getitem__), speeds
