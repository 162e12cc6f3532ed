"""Times launches on a CPU and a GPU, calibrates the timer, and reads the state of the machine."""
