"""Text in, batches out: corpus, assets, preparation, tokenizer, packing, stream, loader.

from minitrain.data import Loader, make_corpus, pack, train_tokenizer
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "Loader": "loader",
        "make_corpus": "corpus",
        "pack": "packing",
        "train_tokenizer": "tokenizer",
    },
)
