"""Changes the code of what verifies it, and writes nothing. Only a comparison in another process can tell."""

from spec_decode_bench.harness.contract import variant


@variant("decode_native")
def judges_itself(point, x, out):
    from spec_decode_bench.harness.verify.equality import compare
    from spec_decode_bench.harness.verify.output_probe import OutputProbe

    compare.__code__ = (lambda name, got, before, expected, views=tuple: None).__code__
    OutputProbe.check.__code__ = (lambda self, stage: None).__code__
    return lambda: None
