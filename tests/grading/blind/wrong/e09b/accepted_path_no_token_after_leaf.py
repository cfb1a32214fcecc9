# exercise: accepted_path
# says: and one comes even where nothing is kept
# at a leaf (and at n = 0) it ends without the one more token

def accepted_path(tokens: list, parents: list, choices: list):
    path, text, at = [], [], -1
    children = [i for i, parent in enumerate(parents) if parent == -1]
    while children:
        own = choices[at + 1]
        text.append(own)
        same = [i for i in children if tokens[i] == own]
        if not same:
            break
        at = same[0]
        path.append(at)
        children = [i for i, parent in enumerate(parents) if parent == at]
    return path, text
