# right: one scan over the nodes suffices, for a parent is an earlier node
def accepted_path(tokens: list, parents: list, choices: list):
    path, at = [], -1
    for node, (token, parent) in enumerate(zip(tokens, parents)):
        if parent == at and token == choices[at + 1]:
            path.append(node)
            at = node
    return path, [tokens[node] for node in path] + [choices[at + 1]]
