# exercise: accepted_path
# says: only the first child of a node was looked at


def accepted_path(tokens, parents, choices):
    path, at = [], -1
    while at in parents:
        child = parents.index(at)
        if tokens[child] != choices[at + 1]:
            break
        path.append(child)
        at = child
    return path, [*(tokens[n] for n in path), choices[at + 1]]
