"""Masters become notebooks: the learner's and the executed solution."""
