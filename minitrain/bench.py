"""Benchmarks each technique against its best-known peer; the files are in `tests/bench`."""

from minitrain.paths import course_root

__path__ = [str(course_root() / "tests" / "bench")]
