"""What a chip says of itself: NVML where there is one, else a model of heat and power."""
