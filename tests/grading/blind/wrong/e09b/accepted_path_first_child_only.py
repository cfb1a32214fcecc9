# exercise: accepted_path
# says: any of them may be the target's own
# looks only at the first child of each node (parents.index), not at its rivals

def accepted_path(tokens: list, parents: list, choices: list):
    path, text, at = [], [], -1
    while at in parents:
        child = parents.index(at)
        if tokens[child] != choices[at + 1]:
            break
        path.append(child)
        text.append(tokens[child])
        at = child
    return path, text + [choices[at + 1]]
