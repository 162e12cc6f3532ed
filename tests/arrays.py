"""The covering array of an operator, which takes up to half a minute: the first process of a test run that needs it
builds it, the others read it.
"""

import os
import pickle
from functools import cache
from pathlib import Path

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.covering_array import CoveringArray, covering_array

#: Environment variable that names the folder of a test run.
FOLDER = "SPEC_DECODE_BENCH_TEST_ARRAYS"


@cache
def array_of(name: str) -> CoveringArray:
    file = Path(os.environ[FOLDER], f"{name}.pickle")
    if file.exists():
        return pickle.loads(file.read_bytes())
    array = covering_array(discover().operators[name], discover().of(name))
    written = file.with_suffix(f".{os.getpid()}")
    written.write_bytes(pickle.dumps(array))
    written.replace(file)
    return array
