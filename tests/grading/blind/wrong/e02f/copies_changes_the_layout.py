# exercise: copies
# says: read them, change nothing
# adds "pp" to the parameter's own layout.split, so that after the count a tied table says that
# its stages hold different elements; the text: "`layout.split` and `layout.partial` are sets of
# axes" to read, and split means "ranks along these axes hold *different* elements".

def copies(layout, mesh):
    number = 2 if "pp" in layout.partial else 1
    left_out = layout.split
    left_out.add("pp")  # never a plain factor
    for axis in mesh.axes:
        if axis not in left_out:
            number *= mesh[axis]
    return number
