# exercise: accepted_path
# says: choices[-1] is the last one
# choices is read at the number of the node itself: choices[i] is the choice before it (its
# first entry belongs to the text), so the last entry stands in for the text and every node has
# its predecessor's

def accepted_path(tokens, parents, choices):
    at, path, new = -1, [], []
    while True:
        wanted = choices[at]
        new.append(wanted)
        for node in range(len(tokens)):
            if parents[node] == at and tokens[node] == wanted:
                break
        else:
            return path, new
        path.append(node)
        at = node
