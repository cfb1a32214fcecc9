"""Whether a mesh can train a model on a batch; if not, why, and the nearest mesh that can.

    tp   divides the query heads and the MLP's width (key/value heads may be fewer: they are copied)
    pp   times the chunks is at most the layers
    ep   divides the experts
    cp   twice it divides the tokens of a row, with --sequence also cp x tp
    dp   times ep and the microbatches divides the rows of a batch

The nearest changes the fewest axes, then these by the least factors, and asks for no more ranks.
Imports no torch, so that a wrong mesh is answered in a blink.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from minitrain.errors import InputError, unknown_name
from minitrain.model.config import ModelConfig
from minitrain.parallel.pipeline.schedules import SCHEDULES
from minitrain.words import plural

FLAGS = ("dp", "tp", "pp", "cp", "ep")  # as one types them; on a mesh in mesh_model.AXES' order


@dataclass(frozen=True)
class Wish:
    """A mesh, and what it is for; `ranks`: how many there are, None: as many as it has places."""

    config: ModelConfig
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    batch: int = 8
    length: int = 192
    accumulate: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    sequence: bool = False
    ranks: int | None = None

    @property
    def places(self) -> int:
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in FLAGS)

    def __str__(self) -> str:
        return " ".join(f"--{axis} {n}" for axis, n in zip(FLAGS, self.sizes) if n > 1) or "--dp 1"


def check_mesh(wish: Wish) -> None:
    """InputError with the reason and what would do, unless the mesh can do it."""
    check_schedule(wish)
    found = next(reasons(wish), None)
    if found is None:
        return
    reason, remedies = found
    near = nearest(wish)
    if near is not None:
        remedies = [*remedies, changes(wish, near)]
    raise InputError(f"{reason}: use {', or '.join(remedies)}")


def check_schedule(wish: Wish) -> None:
    for axis, size in zip(FLAGS, wish.sizes):
        if size < 1:
            raise InputError(f"--{axis} {size} is not possible: it must be 1 or more")
    if wish.schedule not in SCHEDULES:
        raise unknown_name("schedule", wish.schedule, SCHEDULES)
    if wish.chunks < 1 or (wish.chunks > 1 and wish.schedule != "interleaved"):
        raise InputError(
            f"--chunks {wish.chunks} is not possible with --schedule {wish.schedule}: "
            "use --chunks 1, or --schedule interleaved with 2 or more"
        )


def reasons(wish: Wish) -> Iterator[tuple[str, list[str]]]:
    """Each reason why it cannot be, and what else than another mesh would mend it."""
    yield from reasons_of_width(wish)
    yield from reasons_of_depth(wish)
    yield from reasons_of_data(wish)
    if wish.ranks is not None and wish.places != wish.ranks:
        yield (
            f"{wish} makes a mesh of {plural(wish.places, 'rank')}, and there are {wish.ranks}",
            [plural(wish.places, "rank")],
        )


def reasons_of_width(wish: Wish) -> Iterator[tuple[str, list[str]]]:
    heads, width = wish.config.heads, wish.config.ffn_size
    if heads % wish.tp:
        yield f"--tp {wish.tp} does not divide the model's {heads} heads", []
    if width % wish.tp:
        yield f"--tp {wish.tp} does not divide the {width} features of the model's MLP", []
    if wish.sequence and wish.tp == 1:
        yield "--sequence splits tokens over the ranks of --tp, and there is one", ["no --sequence"]


def reasons_of_depth(wish: Wish) -> Iterator[tuple[str, list[str]]]:
    layers, experts, stages = wish.config.layers, wish.config.experts, wish.pp * wish.chunks
    if stages > layers:
        what = f"--pp {wish.pp}" + (f" with --chunks {wish.chunks}" if wish.chunks > 1 else "")
        yield f"{what} makes {stages} stages, and the model has {layers} layers", []
    if wish.ep > 1 and not experts:
        yield f"--ep {wish.ep} splits experts, and the model has none", ["--preset 1M-moe"]
    elif experts % wish.ep:
        yield f"--ep {wish.ep} does not divide the model's {experts} experts", []


def reasons_of_data(wish: Wish) -> Iterator[tuple[str, list[str]]]:
    chunks = sequence_chunks(wish)
    if wish.length % chunks:
        fitting = [n for n in around(wish.length, chunks) if n <= wish.config.max_length]
        yield (
            f"--length {wish.length} cannot be cut into {chunks} equal chunks",
            [f"--length {n}" for n in fitting[:1]],
        )
    ranks = wish.dp * wish.ep
    parts = ranks * wish.accumulate
    if wish.batch % parts:
        yield (
            f"--batch {wish.batch} does not divide into rows for {plural(ranks, 'rank')} x "
            f"{wish.accumulate} microbatches",
            [f"--batch {around(wish.batch, parts)[0]}"],
        )


def sequence_chunks(wish: Wish) -> int:
    """Into how many chunks a row is cut: two a rank of cp (zig-zag), and a part a rank of tp."""
    zigzag = 2 * wish.cp if wish.cp > 1 else 1
    return math.lcm(zigzag, wish.cp * wish.tp if wish.sequence else 1)


def around(number: int, factor: int) -> list[int]:
    """The multiples of `factor` below and above, the nearer one first."""
    below = number - number % factor
    return sorted((n for n in (below, below + factor) if n), key=lambda n: abs(n - number))


def nearest(wish: Wish) -> Wish | None:
    """The nearest that can, with at most as many places; exactly `ranks`, where they are given."""
    config = wish.config
    possible = {
        "dp": divisors(wish.batch),
        "tp": divisors(math.gcd(config.heads, config.ffn_size)),
        "pp": range(1, config.layers // wish.chunks + 1),
        "cp": [1, *divisors(wish.length // 2)],
        "ep": divisors(config.experts or 1),
    }
    most = wish.ranks or wish.places
    meshes = (dict(zip(FLAGS, sizes)) for sizes in product(*(possible[axis] for axis in FLAGS)))
    fitting = (replace(wish, **m) for m in meshes if math.prod(m.values()) <= most)
    able = (other for other in fitting if next(reasons(other), None) is None)
    return min(able, key=lambda other: distance(wish, other), default=None)


def distance(wish: Wish, other: Wish) -> tuple:
    """How many axes differ, by what factors together; then the more ranks the better, along dp."""
    factors = [abs(math.log(a / b)) for a, b in zip(wish.sizes, other.sizes) if a != b]
    return len(factors), round(sum(factors), 6), -other.places, [-n for n in other.sizes]


def changes(wish: Wish, other: Wish) -> str:
    pairs = zip(FLAGS, wish.sizes, other.sizes)
    return " ".join(f"--{axis} {new}" for axis, old, new in pairs if new != old)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
