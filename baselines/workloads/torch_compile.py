"""torch.compile of chains of operators, so that what runs does not depend on the points that came before.

Dynamo compiles for what it meets first and takes equal sizes for one, Inductor chooses tiles by them, and of all that
was compiled the code that fits and ran last is run. The process that times and the one that counts meet other points
first, so they would run other code under one name. Here both meet the same examples before anything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.contract import HOST, Operator, Point

#: Sizes 0 and 1, branches and host constants are compiled apart, more often than Dynamo's default of 8 allows. Past the
#: limit it would run the plain operators unsaid, and those must not be timed as compiled: it raises instead.
RECOMPILE_LIMIT = 64

#: Bytes of the storage of an example's tensor before its first one. As wide as the harness's guards: to Dynamo an
#: offset is a size among others.
MARGIN = 16384

_learnt: dict[tuple[Callable, torch.device], Callable] = {}


def compiled(
    chain: Callable,
    setup: Callable[[Point, Any, Any, Callable], Callable[[], Any]],
    operator: Operator,
    examples: Sequence[Mapping[str, Any]],
    device: torch.device,
) -> Callable:
    """torch.compile (Inductor, dynamic shapes) of ``chain``: one function per process, as an engine would hold it.

    setup:    (point, x, out, chain) -> launch, which runs the chain given.
    examples: points of ``operator`` that it runs before it is handed out, in this order. The first one is general: no two of
              its sizes are equal, none is 0 or 1, rows stand further apart than they are wide. Others follow for what is
              compiled apart all the same.
    """
    key = (chain, device)
    if key not in _learnt:
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        function = torch.compile(chain, dynamic=True)
        for example in examples:
            point = operator.complete(example)
            x, out = operator.make_inputs(point, 0), operator.make_outputs(point)
            setup(point, _placed(x, device), _placed(out, device), function)()
        _learnt[key] = function
    return _learnt[key]


def _placed(tensors: Any, device: torch.device) -> Any:
    """A dataclass of tensors on the device, strides as they were, each a view of a wider storage as the harness makes
    them, for Dynamo tells those from tensors of their own. Host arrays stay where they are.
    """
    return dataclasses.replace(
        tensors,
        **{
            field.name: _view(value, device)
            for field in dataclasses.fields(tensors)
            if isinstance(value := getattr(tensors, field.name), Tensor) and field.metadata != HOST
        },
    )


def _view(source: Tensor, device: torch.device) -> Tensor:
    reach = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
    storage = torch.zeros(MARGIN + reach * source.element_size(), dtype=torch.uint8, device=device).view(source.dtype)
    return storage.as_strided(source.shape, source.stride(), MARGIN // source.element_size()).copy_(source)
