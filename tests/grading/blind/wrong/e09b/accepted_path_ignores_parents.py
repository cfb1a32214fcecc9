# exercise: accepted_path
# says: another branch has the same token
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
