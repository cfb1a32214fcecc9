from __future__ import annotations

import pytest

from minitrain.errors import InputError, divide


def test_what_divides_is_divided():
    assert divide("experts", 8, 4) == 2 and divide("heads", 3, 1) == 3


@pytest.mark.parametrize(
    "length, parts, words",
    [
        (8, 3, "8 experts cannot be split over 3 ranks: use 6 or 9, or 2 or 4 ranks"),
        (25, 4, "use 24 or 28, or 5 ranks"),
        (1, 2, "use 2$"),
        (3, 4, "use 4, or 3 ranks"),
    ],
)
def test_what_does_not_names_the_nearest_that_do(length, parts, words):
    with pytest.raises(InputError, match=words):
        divide("experts", length, parts)
