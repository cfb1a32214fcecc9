"""A package that is not there costs a sentence that says who needs it and how to get it."""

from __future__ import annotations

import pytest

from minitrain.errors import InputError
from minitrain.optional import optional, require


def test_what_is_there_is_given():
    assert optional("this test", "json").loads("1") == 1
    require("this test", "json", "os.path")


def test_what_is_missing_is_named_with_its_remedy():
    said = r"page needs no_such and nor_this, which is not installed: pip install 'x\[serve\]'$"
    with pytest.raises(InputError, match=said):
        require("the page", "json", "no_such", "nor_this", install="'x[serve]'")
    with pytest.raises(InputError, match=r"pip install no_such, or name other benches$"):
        optional("the bench", "no_such", instead=", or name other benches")


def test_what_is_installed_and_broken_says_why(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"half_there, which is broken \(No module named"):
        optional("this test", "half_there")
