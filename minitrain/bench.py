"""Each technique beside the peer that a user would pick instead; the files lie in `tests/bench`."""

from minitrain.paths import course_root

__path__ = [str(course_root() / "tests" / "bench")]
