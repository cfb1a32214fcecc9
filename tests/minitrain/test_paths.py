"""Folders of the user, also of one whose home cannot be written."""

from __future__ import annotations

import pytest

from minitrain import paths


@pytest.mark.parametrize("folder", [paths.cache_dir, paths.state_dir])
def test_who_cannot_write_at_home_writes_in_the_checkout(folder, tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "course_root", lambda: tmp_path / "Größe und Übung")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder().is_relative_to(tmp_path / "home") and folder().is_dir()
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    assert folder().is_relative_to(paths.stand_in_home()) and folder().is_dir()
