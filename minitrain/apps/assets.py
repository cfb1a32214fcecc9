"""`python -m minitrain assets [NAME]`: list the texts and models that can be fetched, or fetch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.apps.kinds import Argument, one_of


def known() -> Collection[str]:
    from minitrain.data.assets.fetch import ASSETS

    return ASSETS


def assets(
    name: Annotated[
        str | None, Argument(one_of("asset", known), "the one to fetch; without it, all are listed")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress")] = False,
) -> None:
    """List the texts and models that can be fetched, or fetch one."""
    from minitrain.data.assets.fetch import fetch

    if name is None:
        Console().print(_table())
        print("fetch one with: python -m minitrain assets NAME")
    else:
        print(fetch(name, progress=not quiet))


def _table() -> Table:
    from minitrain.data.assets.fetch import ASSETS, is_cached

    table = Table(box=box.SIMPLE)
    table.add_column("name", no_wrap=True)
    table.add_column("what, and from where", overflow="fold")
    table.add_column("licence")
    table.add_column("MB", justify="right")
    table.add_column("here")
    for asset in ASSETS.values():
        what = f"{asset.about}\n[dim]{asset.package.registry} {asset.package.address}[/dim]"
        here = "yes" if is_cached(asset.name) else "no"
        table.add_row(asset.name, what, asset.licence, f"{asset.size_bytes / 1e6:.1f}", here)
    return table
