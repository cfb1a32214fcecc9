# exercise: accepted_path
# says: a node counts only as a child of the one that was kept before it
# looks for the target's token anywhere among the later nodes, not only among the children of
# the node it stands at

def accepted_path(tokens: list, parents: list, choices: list):
    path, text, at = [], [], -1
    while True:
        token = choices[at + 1]
        text.append(token)
        if token not in tokens[at + 1 :]:
            return path, text
        at = tokens.index(token, at + 1)
        path.append(at)
