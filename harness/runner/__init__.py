"""A run: the loop, the processes that own the device, and what they say to each other."""
