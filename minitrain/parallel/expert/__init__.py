"""Expert parallelism: experts spread over ranks, tokens that travel to them and back."""
