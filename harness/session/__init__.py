"""The loop of a run, the worker processes that own the device, and the messages between them."""
