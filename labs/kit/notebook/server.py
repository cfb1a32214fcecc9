"""JupyterLab with the course's settings: no kernel dialog, no news, line numbers, cell timing.

The settings are in `jupyter/overrides.json`, the tabs' style in `jupyter/custom.css`; the user's
own are separate, and take precedence.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SETTINGS = Path(__file__).parent / "jupyter"
NBGRADER = ("formgrader", "validate_assignment", "assignment_list", "course_list")  # its own pages


def server_command(
    root: Path,
    page: Path,
    port: int | None = None,
    browser: bool = True,
    options: tuple[str, ...] = (),
) -> list[str]:
    """The command line that serves `root` and opens `page`, with this Python as the only kernel."""
    from jupyter_core.paths import jupyter_config_dir

    styles = [str(Path(jupyter_config_dir()) / "custom"), str(SETTINGS)]
    unused = {f"nbgrader.server_extensions.{name}": False for name in NBGRADER}  # they warn, too
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        "--LabApp.custom_css=True",  # the user's own custom.css replaces it
        f"--ServerApp.tornado_settings={ {'static_custom_path': styles} }",
        f"--LabApp.default_url=/lab/tree/{page.relative_to(root).as_posix()}",
        "--log-level=ERROR",  # the address is printed anyway
        "--LabApp.log_level=ERROR",
        f"--ServerApp.jpserver_extensions={unused}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--KernelSpecManager.allowed_kernelspecs={'python3'}",
        "--KernelManager.transport_encryption=auto",  # else each kernel warns in the terminal
    ]
    command += [f"--ServerApp.port={port}"] if port else []
    command += ["--allow-root"] if is_root() else []
    return command + ([] if browser else ["--no-browser"]) + list(options)


def environment() -> dict[str, str]:
    """Variables for the server's kernels: a course file runs before their first cell."""
    startup = str(SETTINGS / "kernel_startup.py")
    return {"PYTHONSTARTUP": startup, **os.environ}  # the user's own wins


def is_root() -> bool:
    """True for root, as often in containers; Jupyter then needs an explicit flag."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
