"""Replaces what verifies it, and writes nothing. Only a comparison in another process can tell."""

from harness.contract import variant


@variant("decode_native")
def judges_itself(point, x, out):
    import harness.verify.fixture
    from harness.verify.output_probe import OutputProbe

    harness.verify.fixture.compare = lambda *arguments: None
    OutputProbe.check = lambda self, stage: None
    return lambda: None
