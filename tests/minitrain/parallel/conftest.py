"""The techniques' tests use the server that ranks are forked from: started once, as in ranks/."""

from ..ranks.conftest import started as started
