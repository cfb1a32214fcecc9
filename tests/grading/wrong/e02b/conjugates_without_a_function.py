# exercise: conjugates
# says: nothing was summed: the first one's backward is `back` | no gradient came back


def conjugates(there, back):
    return lambda x: there(x.clone()), lambda x: back(x.clone())
