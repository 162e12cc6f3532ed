"""What do the metadata operators of a decode step change in inter-token latency (ITL) and time per output token (TPOT)?

Stacks name a variant for every operator of a step; they serve the same requests in turns, around a stand-in for the
model. ``planning.py`` makes loops of a configuration's section ``decode_loop:``. In the worker ``evaluator.py``
verifies their variants, then ``loop.py`` runs blocks of steps: ``scheduler.py`` has the host's side, ``device.py`` the
device's. Each must end as ``simulation.py`` does with the scalar references (``expected.py``). ``records.py`` keeps the
raw samples, ``analysis.py`` compares stacks block by block, ``tables.py`` and ``plots/`` show it.

Begin with ``loop.py``, and with ``bindings/`` for how an operator takes part.
"""
