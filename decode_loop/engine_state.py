"""What a serving engine holds between two decode steps, and how an operator is bound to it in a decode loop.

Every tensor is persistent: it has one address for the whole loop, so that launches are set up once and graphs replay.
An operator says with a ``LoopBinding`` in ``decode_loop/bindings/<operator>.py`` which views of this state are its
inputs, and what later kernels read of its outputs.

Never imports torch at run time: a configuration is checked against these types before a device is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from spec_decode_bench.harness.contract import Point

#: When an operator is launched in a step.
Turn = Literal["before_forward", "after_sampling"]


@dataclass(frozen=True)
class EngineShape:
    """The sizes of a loop. batch_size is the captured size, of which the last batch_size - num_requests are padding.

    Every request brings next_n tokens to every step: one verified token and next_n - 1 drafts.
    context_len: lengths at which the operators are verified, as the axis of this name takes them.
    by_slot:     whether state and tables are kept by request slot, as the operators of a whole step have them, not by
                 row. Then state_groups cache groups hold recurrent states beside the first, which is attention's, and a
                 slot holds history_len tokens of output.
    """

    batch_size: int
    num_requests: int
    next_n: int
    context_len: Any
    decode_path: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_heads_q: int
    num_sms: int
    mamba_block_size: int
    num_layers: int
    state_groups: int = 0
    by_slot: bool = False
    history_len: int = 1

    def axes(self, *names: str) -> dict[str, Any]:
        """The axes of an operator that have the name of a size of the loop, with their values."""
        return {name: getattr(self, name) for name in names}

    @property
    def num_tokens(self) -> int:
        """Query tokens of the real requests."""
        return self.num_requests * self.next_n

    @property
    def padding(self) -> float:
        """Share of the captured batch that is padding requests."""
        return (self.batch_size - self.num_requests) / self.batch_size

    @property
    def num_drafts(self) -> int:
        return self.next_n - 1

    @property
    def block_columns(self) -> int:
        """Columns of the block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def state_columns(self) -> int:
        """Columns of the table of Mamba states: a state per block, and one for each draft."""
        return -(-self.max_model_len // self.mamba_block_size) + self.num_drafts


@dataclass(frozen=True)
class Consumed:
    """What the kernels of the model read of one table.

    values:      int32 or int64 [columns] or [rows, columns], contiguous within a row.
    row_lengths: int32 [rows]; ceil(row_lengths / unit) leading columns of a row are read. None: all of them.
    idle:        of a row that begins with this value only the first entry is read: it has no work. None: no such row.
    """

    values: Tensor
    row_lengths: Tensor | None = None
    unit: int = 1
    idle: int | None = None


@dataclass
class SlotState:
    """What a loop keeps by request slot. R = max_num_seqs slots, G groups, k drafts; int32 unless said otherwise.

    Counts and columns are changed in place, as in an engine. The tables of all groups lie in one flat array, group g as
    [R, widths[g]] from table_starts[g] on. The last five tensors are written by an operator in each step, and read by a
    later one.
    """

    idx_mapping: Tensor  # [B] int64, slot of each row; -1 for padding
    query_start_loc: Tensor  # [R + 1]
    cu_num_logits: Tensor  # [B + 1]
    tables: Tensor  # flat
    num_blocks: Tensor  # [G, R] blocks that each slot owns
    prompt_lens: Tensor  # [R]
    total_len: Tensor  # [R] tokens of output
    state_columns: Tensor  # [R] column of the running state; -1 = none
    num_accepted_tokens: Tensor  # [R] accepted drafts + 1; 1 where a state was moved
    last_sampled_tokens: Tensor  # [R] int64, the newest token
    draft_tokens: Tensor  # [R, k] int64
    all_token_ids: Tensor  # [R, history_len]
    sampled_tokens: Tensor  # [B, k + 1] int64, of the sampler
    table_starts: Tensor  # [G] int64
    widths: Tensor  # [G] int64
    block_sizes: Tensor  # [G]
    reach: Tensor  # [G], 0: no group has a window
    enabled: Tensor  # [G] bool, whether tokens of the group are written through slots
    sharded: Tensor  # [G] bool, all false
    input_ids: Tensor  # [max_num_batched_tokens]
    next_prefill_tokens: Tensor  # [1, R]
    block_tables: Tensor  # flat, in batch order
    num_sampled: Tensor  # [R] by row
    num_rejected: Tensor  # [R] by row


@dataclass
class EngineState:
    """Persistent tensors. B captured requests, R real ones in the first rows; int32 unless said otherwise.

    Pairs are used in turns, by the parity of the step. ``tables`` holds what the operators of a stack have built so far
    in the order of a step: name -> Consumed, so that a later operator finds the output of an earlier one.

    With ``slots``, num_computed_tokens is by slot, and both of its pair are one array; requests have no previous row,
    and block_table is the first group's table that an operator gathers in batch order.
    """

    shape: EngineShape
    seq_lens: Tensor  # [max_num_seqs], rows from R on are 0
    num_computed_tokens: tuple[Tensor, Tensor]  # [max_num_seqs], before the step
    num_accepted: Tensor  # [max_num_seqs] accepted drafts + 1 of the previous step; 1 for a new request
    positions: Tensor  # [max_num_batched_tokens] int64
    valid: Tensor  # [max_num_seqs] accepted drafts + 1, written by the sampler at the end of a step
    query_start_loc: Tensor  # [B + 1]
    decode_lens: Tensor  # [B]: next_n, 0 for padding
    block_table: Tensor  # [B, block_columns]
    state_table: Tensor  # [B, state_columns] state slots of Mamba layers
    requests: Tensor  # [B] number of the request in each row
    request_slots: Tensor  # [B] 1 + row, 0 for padding
    fresh: Tensor  # [B] bool: the request is new in this step
    anchors: Tensor  # [max_num_seqs + 1] by request slot: column that the previous step scheduled, -1 = unknown
    to_device: tuple[Tensor, Tensor]  # host, [3 R]: previous row or -1, computed tokens as the host counts, drafts
    num_scheduled: Tensor  # host, [R]: next_n
    query_start_loc_cpu: Tensor  # host, [B + 1]
    seq_lens_cpu_upper_bound: Tensor  # host, [max_num_seqs]
    slots: SlotState | None = None  # of a loop by slot
    parity: int = 0
    tables: dict[str, Consumed] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopBinding:
    """How an operator takes part in a decode loop.

    operator: its name.
    axes:     the axes of its point, but those at their defaults.
    needs:    tables that operators before it in a step must have built.
    builds:   names of the tables that it builds. Stacks are compared on the same tables.
    inputs:   (point, state) -> its Inputs, views of the state. Called once per parity, before the loop.
    outputs:  (point, state, out) -> its Outputs, where some of them are tensors of the state; out are new buffers.
    consumed: (point, state, out) -> what the model, or after sampling the drafter, reads, by the names in ``builds``.
    turn:     when it is launched in a step: before the model's forward pass, or after the sampler.
    by_slot:  whether its state is kept by request slot, or by row of the batch; None where it keeps none.
    applies:  whether a step of this shape needs it; where not, stacks go without it.
    """

    operator: str
    axes: Callable[[EngineShape], Mapping[str, Any]]
    builds: Callable[[EngineShape], tuple[str, ...]]
    inputs: Callable[[Point, EngineState], Any]
    consumed: Callable[[Point, EngineState, Any], Mapping[str, Consumed]]
    needs: tuple[str, ...] = ()
    turn: Turn = "before_forward"
    by_slot: bool | None = None
    applies: Callable[[EngineShape], bool] = lambda shape: True
    outputs: Callable[[Point, EngineState, Any], Any] = lambda point, state, out: out
