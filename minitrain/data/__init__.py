"""Text in, batches out: corpus, assets, preparation, tokenizer, packing, stream, loader.

from minitrain.data import Loader, make_corpus, pack, train_tokenizer
"""

_DOOR = {
    "Loader": "loader",
    "make_corpus": "corpus",
    "pack": "packing",
    "train_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    """Imports a name on first use, so that `--help` and the sandbox start without torch."""
    if name not in _DOOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DOOR[name]}"), name)
