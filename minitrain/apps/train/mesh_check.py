"""Checks that a mesh fits a model and its batch; if not, gives the reason and the nearest mesh that
fits.

    tp   divides the query heads and the MLP's width (key/value heads may be fewer: they are copied)
    pp   times the chunks is at most the layers
    ep   divides the experts
    cp   twice it divides the tokens of a row, with --sequence also cp x tp
    dp   times ep and the microbatches divides the rows of a batch

The nearest mesh changes the fewest axes, then by the smallest factors, and needs no more ranks.
Imports no torch, so that a wrong mesh is refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

from minitrain.apps.kinds import one_of, whole
from minitrain.apps.options import Flag, Option
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.parallel.pipeline.schedules import SCHEDULES
from minitrain.words import plural

FLAGS = ("dp", "tp", "pp", "cp", "ep")  # as one types them; on a mesh in mesh_model.AXES' order
PANEL = "On several ranks"
RANKS = whole(1, 10_000)
SCHEDULE = one_of("schedule", lambda: SCHEDULES)


def axis(help: str) -> Option:
    return Option(RANKS, help, panel=PANEL)


@dataclass(frozen=True)
class MeshRequest:
    """A mesh and its batch; `ranks` is the number of processes, None: the mesh's size."""

    dp: Annotated[int | None, axis("A mesh: ranks that split the rows of a batch.")] = None
    tp: Annotated[int | None, axis("A mesh: ranks that split each matrix.")] = None
    pp: Annotated[int | None, axis("A mesh: ranks that split the layers.")] = None
    cp: Annotated[int | None, axis("A mesh: ranks that split each row.")] = None
    ep: Annotated[int | None, axis("A mesh: ranks that split rows, and the experts.")] = None
    sequence: Annotated[
        bool, Flag("With --tp, also split the tokens between its matrices.", PANEL)
    ] = False
    schedule: Annotated[
        str, Option(SCHEDULE, f"The schedule of --pp: {', '.join(SCHEDULES)}.", panel=PANEL)
    ] = "1f1b"
    chunks: Annotated[
        int, Option(whole(1, 64), "Stages a rank; 2 if --schedule is interleaved.", panel=PANEL)
    ] = 1
    batch: Annotated[int, Option(whole(1, 100_000), "Sequences a step, over all ranks.")] = 8
    length: Annotated[int, Option(whole(1, 10**7), "Tokens a sequence.")] = 192
    accumulate: Annotated[
        int, Option(whole(1, 100_000), "Microbatches into which a rank's batch is cut.")
    ] = 1
    ranks: int | None = None

    @property
    def places(self) -> int:
        return math.prod(self.sizes)

    @property
    def axes(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return {axis: 1 if getattr(self, axis) is None else getattr(self, axis) for axis in FLAGS}

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.axes.values())

    def __str__(self) -> str:
        return " ".join(f"--{axis} {n}" for axis, n in zip(FLAGS, self.sizes) if n > 1) or "--dp 1"


def check_mesh(config: ModelConfig, request: MeshRequest) -> None:
    """InputError with the reason and the remedy, if the mesh does not fit."""
    check_schedule(request)
    found = next(reasons(config, request), None)
    if found is None:
        return
    reason, remedies = found
    near = nearest(config, request)
    if near is not None:
        remedies = [*remedies, changes(request, near)]
    raise InputError(f"{reason}: use {', or '.join(remedies)}")


def check_schedule(request: MeshRequest) -> None:
    if request.chunks > 1 and request.schedule != "interleaved":
        raise InputError(
            f"--chunks {request.chunks} is not possible with --schedule {request.schedule}: "
            "use --chunks 1, or --schedule interleaved with 2 or more"
        )


def reasons(config: ModelConfig, request: MeshRequest) -> Iterator[tuple[str, list[str]]]:
    """Each reason why the mesh does not fit, with remedies other than another mesh."""
    yield from reasons_of_width(config, request)
    yield from reasons_of_depth(config, request)
    yield from reasons_of_data(config, request)
    if request.ranks is not None and request.places != request.ranks:
        yield (
            f"{request} makes a mesh of {plural(request.places, 'rank')}, and there are "
            f"{request.ranks}",
            [plural(request.places, "rank")],
        )


def reasons_of_width(config: ModelConfig, request: MeshRequest) -> Iterator[tuple[str, list[str]]]:
    heads, width, tp = config.heads, config.ffn_size, request.axes["tp"]
    if heads % tp:
        yield f"--tp {tp} does not divide the model's {heads} heads", []
    if width % tp:
        yield f"--tp {tp} does not divide the {width} features of the model's MLP", []
    if request.sequence and tp == 1:
        yield "--sequence splits tokens over the ranks of --tp, and there is one", ["no --sequence"]


def reasons_of_depth(config: ModelConfig, request: MeshRequest) -> Iterator[tuple[str, list[str]]]:
    layers, experts = config.layers, config.experts
    pp, ep, chunks = request.axes["pp"], request.axes["ep"], request.chunks
    stages = pp * chunks
    if stages > layers:
        what = f"--pp {pp}" + (f" with --chunks {chunks}" if chunks > 1 else "")
        yield f"{what} makes {stages} stages, and the model has {layers} layers", []
    if ep > 1 and not experts:
        yield f"--ep {ep} splits experts, and the model has none", ["--preset 1M-moe"]
    elif experts % ep:
        yield f"--ep {ep} does not divide the model's {experts} experts", []


def reasons_of_data(config: ModelConfig, request: MeshRequest) -> Iterator[tuple[str, list[str]]]:
    chunks = sequence_chunks(request)
    if request.length % chunks:
        fitting = [n for n in around(request.length, chunks) if n <= config.max_length]
        yield (
            f"--length {request.length} cannot be cut into {chunks} equal chunks",
            [f"--length {n}" for n in fitting[:1]],
        )
    ranks = request.axes["dp"] * request.axes["ep"]
    parts = ranks * request.accumulate
    if request.batch % parts:
        yield (
            f"--batch {request.batch} does not divide into rows for {plural(ranks, 'rank')} x "
            f"{request.accumulate} microbatches",
            [f"--batch {around(request.batch, parts)[0]}"],
        )


def sequence_chunks(request: MeshRequest) -> int:
    """Chunks of a row: two a rank of cp (zig-zag), and one a rank of tp with --sequence."""
    cp, tp = request.axes["cp"], request.axes["tp"]
    return math.lcm(2 * cp if cp > 1 else 1, cp * tp if request.sequence else 1)


def around(number: int, factor: int) -> list[int]:
    """The multiples of `factor` below and above, the nearer one first."""
    below = number - number % factor
    return sorted((n for n in (below, below + factor) if n), key=lambda n: abs(n - number))


def nearest(config: ModelConfig, request: MeshRequest) -> MeshRequest | None:
    """The nearest mesh that fits, of at most the same size, or exactly `ranks` if given."""
    possible = {
        "dp": divisors(request.batch),
        "tp": divisors(math.gcd(config.heads, config.ffn_size)),
        "pp": range(1, config.layers // request.chunks + 1),
        "cp": [1, *divisors(request.length // 2)],
        "ep": divisors(config.experts or 1),
    }
    most = request.ranks or request.places
    within = ([n for n in possible[axis] if n <= most] for axis in FLAGS)
    meshes = (dict(zip(FLAGS, sizes)) for sizes in product(*within))
    fitting = (replace(request, **m) for m in meshes if math.prod(m.values()) <= most)
    able = (other for other in fitting if next(reasons(config, other), None) is None)
    return min(able, key=lambda other: distance(request, other), default=None)


def distance(request: MeshRequest, other: MeshRequest) -> tuple:
    """Number of axes that differ, their factors, then more ranks first, then larger dp."""
    factors = [abs(math.log(a / b)) for a, b in zip(request.sizes, other.sizes) if a != b]
    return len(factors), round(sum(factors), 6), -other.places, [-n for n in other.sizes]


def changes(request: MeshRequest, other: MeshRequest) -> str:
    pairs = zip(FLAGS, request.sizes, other.sizes)
    return " ".join(f"--{axis} {new}" for axis, old, new in pairs if new != old)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
