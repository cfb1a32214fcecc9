"""Commands on the course's notebooks.

`lab` opens them in JupyterLab, `build` makes them from their masters, `update` fetches the newest
and keeps what a learner wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import HOST, Kind, full_name, whole
from minitrain.apps.options import Argument, Flag, Option
from minitrain.errors import InputError, unknown_name
from minitrain.paths import course_root, stand_in_home

if TYPE_CHECKING:
    from minitrain.lab.building.masters import Target


def read_page(text: str) -> Path:
    """A notebook of labs/, by its name or a prefix of it: e02."""
    labs = course_root() / "labs"
    known = {path.stem: path for path in labs.glob("*.ipynb")}
    if not known:
        raise InputError(f"{labs} holds no notebooks: run 'make build' first")
    name = full_name(text.removesuffix(".ipynb"), known)
    if name not in known:
        raise unknown_name("lab", text, known)
    return known[name]


def read_master_name(text: str) -> str:
    """A lab that has a master, by its name, a prefix of it, or its file."""
    from minitrain.lab.building.masters import targets

    names = [target.name for target in targets()]
    return targets([full_name(text, names)])[0].name


PAGE = Kind("LAB", "the name of a lab", read_page)
MASTER = Kind("LAB", "the name of a lab, e02_data_parallel for one", read_master_name)


def lab(
    page: Annotated[Path, Argument(PAGE, "The notebook to open, such as e02.")] = "index",
    browser: Annotated[
        bool, Flag("Open a browser window, or do not.", names=("--browser/--no-browser",))
    ] = True,
    port: Annotated[int, Option(whole(1, 65535), "The port, or the next free one.")] = 8888,
    ip: Annotated[str, Option(HOST, "Use 0.0.0.0 to reach it from other machines.")] = "localhost",
) -> None:
    """Open JupyterLab on a lab, or on the map of the course.

    minitrain lab
    minitrain lab e02 --no-browser
    """
    from minitrain.lab.notebook.server import environment, server_command

    options = (f"--ServerApp.ip={ip}",) if ip != "localhost" else ()
    tools = Path(sys.executable).parent
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"  # for its terminals
    if not os.access(Path.home(), os.W_OK):
        home = stand_in_home()
        home.mkdir(exist_ok=True)
        os.environ["HOME"] = str(home)  # Jupyter, IPython and we write there
        print(f"your home cannot be written: {home} takes its place")
    print(f"JupyterLab opens on labs/{page.name}; Ctrl-C here, twice, stops it.")
    print(f"`minitrain` works in its terminals; in a shell of your own it is {tools}/minitrain.")
    sys.stdout.flush()
    os.environ.update(environment())
    become(server_command(course_root(), page, port, browser, options))


def become(command: list[str]) -> None:
    """Replaces this process by the command, which then receives its signals and sets its exit
    code."""
    if os.name == "posix":
        os.execv(command[0], command)
    sys.exit(subprocess.run(command).returncode)


# --- build ---


def build(
    names: Annotated[list[str] | None, Argument(MASTER, "The labs; else all.", many=True)] = None,
    check: Annotated[bool, Flag("Only report what has drifted.")] = False,
    force: Annotated[bool, Flag("Also execute what is current.")] = False,
    unfilled: Annotated[bool, Flag("Also run the learner's notebook with its gaps.")] = False,
) -> None:
    """Build executed solutions and learners' notebooks from solutions/*.py.

    minitrain build e02
    minitrain build --check
    """
    from minitrain.lab.building.masters import targets

    chosen = targets(names or None)
    if check:
        sys.exit(_report_drift(chosen))
    for target in chosen:
        _build(target, force, unfilled)


def _report_drift(chosen: list[Target]) -> int:
    from minitrain.lab.building.masters import drift, for_learners, read_master
    from minitrain.lab.building.rules import problems

    found = 0
    for target in chosen:
        differences = [f"{line}: run 'make build'" for line in drift(target)]
        lines = differences + [
            f"{target.name}: {line}" for line in problems(for_learners(read_master(target)))
        ]
        found += len(lines)
        print("\n".join(lines) if lines else f"{target.name}: labs and solutions are current")
    return min(found, 1)


def _build(target: Target, force: bool, unfilled: bool) -> None:
    from minitrain.lab.building.execute import execute
    from minitrain.lab.building.masters import (
        as_solution,
        for_learners,
        read_master,
        with_outputs,
        write,
        write_picture,
    )
    from minitrain.lab.building.rules import problems
    from minitrain.lab.building.schematics import draw_again

    notebook = read_master(target)
    lab, solution = for_learners(notebook), as_solution(notebook)
    for line in problems(lab):
        print(f"{target.name}: {line}", file=sys.stderr)
    write(lab, target.lab)
    ran = None if force else with_outputs(target, solution)
    run = draw_again if ran else execute
    executed = run(ran or solution, target.name, target.lab.parent)
    write(executed, target.solution)
    write_picture(executed, target)
    kept = "its code is that of the last execution, its schematics are today's"
    done = kept if ran else "executed"
    written = f"{_short(target.solution, target)}, {_short(target.lab, target)}"
    print(f"{target.name}: {done}; wrote {written}")
    if unfilled:
        execute(lab, f"{target.name}, unfilled", target.lab.parent)
        print(f"{target.name}: the unfilled lab runs from top to bottom")


def _short(path: Path, target: Target) -> str:
    return path.relative_to(target.root).as_posix()


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
        print(f"  labs/{path.name}: {plural(merged.kept, 'cell')} of yours kept")
        for line in merged.both:
            print(f"    both changed `{line}`: yours runs, the new one stands above it")
    if done.copies:
        print(f"Your notebooks as they were: {done.copies.relative_to(root)}")
