# exercise: copies
# says: however many stages there are
# a tied table counts once for each stage, which is right for two stages only; the text: "on the
# first and the last stage: two copies, however long the pipeline".

def copies(layout, mesh):
    number = 1
    for axis in mesh.axes:
        if axis == "pp":
            number *= mesh["pp"] if "pp" in layout.partial else 1
        elif axis not in layout.split:
            number *= mesh[axis]
    return number
