"""What a launch costs: stopwatches for CPU and GPU, their calibration, and the state of the machine."""
