"""Stand-ins for the capture of a CUDA graph, for tests without a GPU: launch -> its replay."""


class Replays:
    """A graph does what its launch does. Counts graphs and replays."""

    def __init__(self):
        self.graphs, self.replayed = 0, 0

    def __call__(self, launch):
        self.graphs += 1

        def replay():
            self.replayed += 1
            launch()

        return replay


def does_nothing(launch):
    return lambda: None


def cannot_capture(launch):
    """As the driver answers a launch that waits."""
    raise RuntimeError("operation not permitted when stream is capturing\nand more")
