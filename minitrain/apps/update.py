"""`python -m minitrain update`: the newest course, with everything that you wrote in it."""

from __future__ import annotations

from minitrain.paths import course_root


def update() -> None:
    """Fetch the newest course; your cells in labs/ are kept, and copies of your notebooks, too.

    Needs a clone whose branch has an upstream, as `git clone` makes it.
    """
    from minitrain.lab.building.update import update as run

    root = course_root()
    done = run(root)
    if done.before == done.after:
        print(f"The course is the newest already ({done.after}).")
    else:
        print(f"The course went from {done.before} to {done.after}: run `make setup` once.")
    for path, merged in done.merged.items():
        print(f"  labs/{path.name}: {merged.kept} cells of yours kept")
        for line in merged.both:
            print(f"    both changed `{line}`: yours runs, the new one stands above it")
    if done.copies:
        print(f"Your notebooks as they were: {done.copies.relative_to(root)}")
