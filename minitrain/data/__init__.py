"""Text in, batches out: corpus, assets, tokenizer, packing, loader."""
