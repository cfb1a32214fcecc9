# exercise: accepted_path
# says: a node counts only as a child of the one that was kept before it
# a node is found by its token alone: the same token in another branch is taken for a child

def accepted_path(tokens: list, parents: list, choices: list):
    where = {token: node for node, token in enumerate(tokens)}
    path, text, at = [], [], -1
    while True:
        own = choices[at + 1]
        text.append(own)
        node = where.get(own)
        if node is None or node <= at:
            return path, text
        path.append(node)
        at = node
