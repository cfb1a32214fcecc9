"""`python -m minitrain assets [NAME]`: list the texts and models that can be fetched, or fetch."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table


def assets(
    name: Annotated[
        str | None, typer.Argument(help="The asset to fetch; without it, all are listed.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """List the texts and models that can be fetched, or fetch one into the cache."""
    from minitrain.data.assets import fetch

    if name is None:
        Console().print(_table())
        print("fetch one with: python -m minitrain assets NAME")
    else:
        print(fetch(name, progress=not quiet))


def _table() -> Table:
    from minitrain.data.assets import ASSETS, is_cached

    table = Table("name", "what", "licence", "MB", "from", "here", box=box.SIMPLE)
    for asset in ASSETS.values():
        megabytes = f"{asset.size_bytes / 1e6:.1f}"
        source = f"{asset.package.registry} {asset.package.address.rsplit('@', 1)[0]}"
        here = "yes" if is_cached(asset.name) else "no"
        table.add_row(asset.name, asset.about, asset.licence, megabytes, source, here)
    return table
