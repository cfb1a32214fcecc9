"""Readings of a chip: NVML where there is one, else a model of heat and power."""
