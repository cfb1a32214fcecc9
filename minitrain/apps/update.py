"""`python -m minitrain update`: fetches the newest course and keeps everything you wrote."""

from __future__ import annotations

from typing import Annotated

from minitrain.apps.options import Flag
from minitrain.paths import course_root


def update(
    check: Annotated[bool, Flag("Only say how many commits are new.")] = False,
) -> None:
    """Fetch the newest course and keep every cell that you wrote in labs/.

    minitrain update
    minitrain update --check
    """
    from minitrain.lab.building.update import new_commits
    from minitrain.lab.building.update import update as run
    from minitrain.words import plural

    root = course_root()
    if check:
        print(f"{plural(new_commits(root), 'commit')} to fetch; nothing was changed.")
        return
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
