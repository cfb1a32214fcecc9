"""Expert parallelism: experts split over ranks, tokens sent to them and back."""
