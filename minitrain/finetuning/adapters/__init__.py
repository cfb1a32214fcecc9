"""What can be carried by a layer, a file each: all begin as nothing, or as good as nothing."""
