"""`minitrain train`: options, data, set-up and the run."""
