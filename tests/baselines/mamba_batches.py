"""Traffic of the Mamba operators, counted one by one."""

import torch


def entries_moved(operator, point, x, table, requests):
    """(table entries that the slots of the first ``requests`` rows come from, elements written), counted one by one."""
    table.copy_(torch.arange(table.numel(), dtype=torch.int32).view(table.shape))
    expected = operator.reference(point, x)
    slots = [expected[name].value[:requests].tolist() for name in ("input_slots", "output_slots") if name in expected]
    written = (
        e.value.numel() - int((e.untouched if e.may_vary is None else e.untouched | e.may_vary).sum())
        for e in expected.values()
    )
    return sum(len(set().union(*rows)) for rows in zip(*slots, strict=True)), sum(written)
