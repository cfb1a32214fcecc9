"""Context parallelism: one sequence cut over ranks; ring attention and Ulysses."""
