"""`python -m minitrain load --url URL`: throughput against latency of any server, rate by rate."""

from __future__ import annotations

import os
import secrets
from typing import Any

from minitrain.apps.load.options import KEY_VARIABLE, LoadOptions
from minitrain.optional import require


def load(**fields: Any) -> None:
    """Send requests to a server at rising rates; report throughput, latency and goodput.

    minitrain load --rates 1,4,16
    minitrain load --requests 32 --shared 200 --picture load.png
    """
    require("load", "httpx", install="'minitrain[serve]'")
    key, seed = fields["api_key"] or os.environ.get(KEY_VARIABLE), fields["seed"]
    seed = secrets.randbelow(2**32) if seed is None else seed
    run(LoadOptions(**{**fields, "api_key": key, "seed": seed}))


def run(options: LoadOptions) -> None:
    from minitrain.apps.load.run import run

    run(options)
