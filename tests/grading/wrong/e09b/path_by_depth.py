# exercise: accepted_path
# says: another branch has the same token


def accepted_path(tokens, parents, choices):
    path, at = [], -1
    while True:
        found = [n for n in range(at + 1, len(tokens)) if tokens[n] == choices[at + 1]]
        if not found:
            return path, [*(tokens[n] for n in path), choices[at + 1]]
        at = found[0]
        path.append(at)
