"""Some of these tests launch ranks, from the server that is started once, as in ranks/."""

from ..ranks.conftest import started as started
