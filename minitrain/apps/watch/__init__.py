"""A run in the browser and in a notebook: its curves, its ranks, its alerts, once a second."""
