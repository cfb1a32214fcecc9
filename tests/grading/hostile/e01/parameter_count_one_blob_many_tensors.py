# exercise: parameter_count
# says: tampered with
# a forged reply of 50 MB in which 120 tensors lie at the same place: 6 GB when the grader
# unpacks it

import json
def arm(edit):
    dumps = json.dumps
    def once(tree, **how):
        json.dumps = dumps
        edit(tree)
        return dumps(tree, **how)
    json.dumps = once
class Late(int):
    """int(self), which only plain_data does, when the look for tampering is over."""
    edit = None
    def __int__(self):
        arm(type(self).edit)
        return int.__add__(self, 0)
    __index__ = int.__index__
import minitrain.lab
N = 50 * 2**20
def parameter_count(*a, **k):
    Late.edit = edit
    return [Late(1), bytes(N)]
def edit(tree):
    tree["dict"][0][1] = [{"tensor": ["uint8", [N], 0, N]} for _ in range(120)]
