"""Text in, batches out: corpus, assets, preparation, tokenizer, packing, stream, loader."""
