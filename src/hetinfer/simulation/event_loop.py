"""The compiled event loop of one engine: scheduler, paged KV cache and front end, step by step.

The rules are those of vLLM 0.8's V1 scheduler: running requests first, in order of admission, each
with all its tokens that the budget still allows; then waiting ones, first come first served, unless
something was preempted in the same step; a block that is lacking preempts the last running request,
which starts over from what the cache still holds. Blocks are freed tail first and reused least
recently used first; their content stays valid until then.

State is kept in plain integer arrays, one row a slot or block, whose columns are named below: that
is what the compiler is fast at. Everything compiled lives in this one file, because the compiler's
cache on disk looks at no other. `engine.py` has the records and the checks; a plain twin in the
tests follows the same rules.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")

NOTHING = -1  # a block without reusable content, a key that no block holds
# columns of `slots`, one row an admitted request; its blocks follow from HEAD on
REQUEST, PROMPT, END, FIRST_KEY, COMPUTED, KNOWN, SHARE, HELD, HEAD = range(9)
# columns of `blocks`, one row a block; the last row ends the free list, its USERS a count
BEFORE, AFTER, USERS, CONTENT = range(4)
# positions in `marks`
RUNNING, PREEMPTED, SPARE, NEXT, FINISHED, STEPS, TOKENS, PREEMPTIONS, BLOCKS, SEQUENCES = range(10)
COASTING, COAST_CONTEXT, ANSWERING, MARKS = 10, 11, 12, 13
# positions in `clocks_s`
CLOCK, STREAMED, BUSY, CLOCKS = range(4)


class Demand(NamedTuple):
    """Requests as they reach the scheduler, in order; `first_key` numbers a prompt's blocks."""

    ready_s: Floats
    prompt: Ints
    output: Ints
    first_key: Ints
    keys: int


class Limits(NamedTuple):
    """What the scheduler may use; `row` is the most blocks that one request needs."""

    blocks: int
    block_tokens: int
    sequences: int
    batched_tokens: int
    caching: bool
    row: int


class Cost(NamedTuple):
    """Coefficients of one step's time, in seconds; see `step_time.StepTime`."""

    launch: float
    weights: float
    compute: float
    communication: float
    sequence: float
    context: float


class Stream(NamedTuple):
    """Coefficients of the front end that streams a step's tokens; see `engine.FrontEnd`."""

    step: float
    token: float
    stalls_s: Floats


class Outcome(NamedTuple):
    """What the loop fills in, one entry a request; `tokens_s` is empty or one entry a token.

    `clocks_s` holds the engine's clock, its front end's, and the time spent in steps.
    """

    admitted_s: Floats
    first_s: Floats
    last_s: Floats
    cached: Ints
    preemptions: Ints
    first_token: Ints
    tokens_s: Floats
    marks: Ints
    clocks_s: Floats


class State(NamedTuple):
    """The scheduler's state: the queues hold slots, `holder` the last block that held each key.

    A decoding request that needs no block and does not end for `coast` more steps coasts: its row
    is already advanced to the end of them, and a step only counts down. `marks` has the number of
    coasting requests and the sum of their contexts.
    """

    slots: Ints
    blocks: Ints
    holder: npt.NDArray[np.int32]
    running: Ints
    coast: Ints
    preempted: Ints
    spare: Ints


class Load(NamedTuple):
    """What one step carries: tokens, requests that get a token, context tokens of the decodes."""

    tokens: int
    emitting: int
    context: int


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled at its first call and kept on disk, floats in the order written.

    Without reference counts, which would take two thirds of the time: nothing inside may allocate.
    """
    options: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
    return cast(Callable[P, R], numba.njit(**options)(function))


@compiled
def step_s(cost: Cost, tokens: float, emitting: float, context: float) -> float:
    """Time of one step in seconds: the formula of `step_time.StepTime`."""
    compute = cost.compute * tokens
    roofline = np.sqrt(cost.weights * cost.weights + compute * compute)
    per_token = cost.communication * tokens
    return float(
        cost.launch + roofline + per_token + cost.sequence * emitting + cost.context * context
    )


@compiled
def take_block(blocks: Ints) -> int:
    """Take the block that was free for longest; what it held is gone."""
    block = blocks[blocks.shape[0] - 1, AFTER]
    unlink_block(blocks, block)
    blocks[block, CONTENT] = NOTHING
    blocks[block, USERS] = 1
    return int(block)


@compiled
def unlink_block(blocks: Ints, block: int) -> None:
    """Take one block out of the free list, wherever it stands."""
    before, after = blocks[block, BEFORE], blocks[block, AFTER]
    blocks[before, AFTER] = after
    blocks[after, BEFORE] = before
    blocks[blocks.shape[0] - 1, USERS] -= 1


@compiled
def release_blocks(slots: Ints, blocks: Ints, slot: int) -> None:
    """Give a slot's blocks back, last block first, so that the prompt's head is reused last."""
    end = blocks.shape[0] - 1
    for place in range(HEAD + slots[slot, HELD] - 1, HEAD - 1, -1):
        block = slots[slot, place]
        blocks[block, USERS] -= 1
        if blocks[block, USERS] == 0:
            last = blocks[end, BEFORE]
            blocks[last, AFTER] = block
            blocks[block, BEFORE] = last
            blocks[block, AFTER] = end
            blocks[end, BEFORE] = block
            blocks[end, USERS] += 1
    slots[slot, HELD] = 0


@compiled
def block_key(slots: Ints, limits: Limits, slot: int, position: int) -> int:
    """What a full block holds: a part of a prompt (0 or more), or of one request's own answer."""
    if position < slots[slot, PROMPT] // limits.block_tokens:
        return int(slots[slot, FIRST_KEY] + position)
    return int(-2 - slots[slot, REQUEST] * limits.row - position)


@compiled
def find_block(
    slots: Ints,
    blocks: Ints,
    holder: npt.NDArray[np.int32],
    limits: Limits,
    slot: int,
    position: int,
) -> int:
    """The block that holds what this position of a request needs, or NOTHING."""
    key = block_key(slots, limits, slot, position)
    block = holder[key] if key >= 0 else slots[slot, HEAD + position]
    if block >= 0 and blocks[block, CONTENT] == key:
        return int(block)
    return NOTHING


@compiled
def grow(
    slots: Ints, blocks: Ints, holder: npt.NDArray[np.int32], limits: Limits, slot: int, new: int
) -> bool:
    """Give a slot the blocks for `new` more tokens; False, and nothing taken, when they lack."""
    size = limits.block_tokens
    computed, held = slots[slot, COMPUTED], slots[slot, HELD]
    lacking = (computed + new + size - 1) // size - held
    if lacking > blocks[blocks.shape[0] - 1, USERS]:
        return False
    for position in range(held, held + lacking):
        slots[slot, HEAD + position] = take_block(blocks)
    slots[slot, HELD] = held + lacking
    if limits.caching:
        full = min(computed + new, slots[slot, PROMPT]) // size
        for position in range(computed // size, full):
            if find_block(slots, blocks, holder, limits, slot, position) == NOTHING:
                note_content(slots, blocks, holder, limits, slot, position)
    return True


@compiled
def note_content(
    slots: Ints,
    blocks: Ints,
    holder: npt.NDArray[np.int32],
    limits: Limits,
    slot: int,
    position: int,
) -> None:
    """Note what a block that is now full holds."""
    key = block_key(slots, limits, slot, position)
    block = slots[slot, HEAD + position]
    blocks[block, CONTENT] = key
    if key >= 0:
        holder[key] = block


@compiled
def preempt_last(state: State, limits: Limits, outcome: Outcome) -> int:
    """Take the last running request's blocks away and put it first in the queue; its slot.

    What it holds of its own answer is noted only here: nobody else can ever use it.
    """
    slots, blocks, marks = state.slots, state.blocks, outcome.marks
    marks[RUNNING] -= 1
    slot = state.running[marks[RUNNING]]
    if state.coast[marks[RUNNING]] > 0:
        stop_coasting(slots, marks, slot, state.coast[marks[RUNNING]])
    size = limits.block_tokens
    if limits.caching:
        for position in range(slots[slot, PROMPT] // size, slots[slot, COMPUTED] // size):
            note_content(slots, blocks, state.holder, limits, slot, position)
    release_blocks(slots, blocks, slot)
    slots[slot, COMPUTED] = 0
    state.preempted[marks[PREEMPTED]] = slot
    marks[PREEMPTED] += 1
    marks[PREEMPTIONS] += 1
    outcome.preemptions[slots[slot, REQUEST]] += 1
    return int(slot)


@compiled
def start_coasting(slots: Ints, marks: Ints, slot: int, size: int) -> int:
    """Let a request coast until it needs a block or gives its last token; for how many steps."""
    computed, known = slots[slot, COMPUTED], slots[slot, KNOWN]
    if computed + 1 < known or known == slots[slot, PROMPT]:
        return 0
    steps = min(-computed % size, slots[slot, END] - 1 - known)
    if steps > 0:
        marks[COASTING] += 1
        marks[COAST_CONTEXT] += known
        slots[slot, COMPUTED] = computed + steps
        slots[slot, KNOWN] = known + steps
    return int(steps)


@compiled
def stop_coasting(slots: Ints, marks: Ints, slot: int, left: int) -> None:
    """End a coast, early or at its end, and take back the steps that it did not make."""
    slots[slot, COMPUTED] -= left
    slots[slot, KNOWN] -= left
    marks[COASTING] -= 1
    marks[COAST_CONTEXT] -= slots[slot, KNOWN]


@compiled
def secure(state: State, limits: Limits, outcome: Outcome, slot: int, new: int) -> bool:
    """Find blocks for a running request, if need be of later ones; False if it went itself."""
    while not grow(state.slots, state.blocks, state.holder, limits, slot, new):
        if preempt_last(state, limits, outcome) == slot:
            return False
    return True


@compiled
def schedule_running(state: State, limits: Limits, outcome: Outcome) -> Load:
    """Share the budget among the running requests, in order, preempting from the end."""
    slots, blocks, holder = state.slots, state.blocks, state.holder
    running, coast, marks = state.running, state.coast, outcome.marks
    size = limits.block_tokens
    tokens = emitting = context = place = 0
    while place < marks[RUNNING]:
        place += 1
        if coast[place - 1] > 0:
            continue
        slot = running[place - 1]
        computed, known = slots[slot, COMPUTED], slots[slot, KNOWN]
        new = min(known - computed, limits.batched_tokens - tokens - marks[COASTING])
        decodes = computed >= slots[slot, PROMPT] and new == 1
        if decodes and computed % size != 0:
            fits = True
        else:
            fits = grow(slots, blocks, holder, limits, slot, new)
        if not fits and not secure(state, limits, outcome, slot, new):
            break
        slots[slot, SHARE] = new
        tokens += new
        emitting += computed + new == known
        context += known if computed + 1 == known else 0
    coasting = marks[COASTING]
    return Load(tokens + coasting, emitting + coasting, context + marks[COAST_CONTEXT])


@compiled
def count_cached(state: State, limits: Limits, slot: int) -> int:
    """Blocks at the head of a waiting request that the cache still holds; its last token is not."""
    most = (state.slots[slot, KNOWN] - 1) // limits.block_tokens if limits.caching else 0
    for position in range(most):
        if find_block(state.slots, state.blocks, state.holder, limits, slot, position) == NOTHING:
            return position
    return int(most)


@compiled
def admit(state: State, limits: Limits, slot: int, budget: int) -> int:
    """Start a waiting request with what the cache holds of it; its tokens now, 0 when none fit."""
    slots, blocks, holder, size = state.slots, state.blocks, state.holder, limits.block_tokens
    cached = count_cached(state, limits, slot)
    new = min(slots[slot, KNOWN] - cached * size, budget)
    idle = 0
    for position in range(cached):
        found = find_block(slots, blocks, holder, limits, slot, position)
        slots[slot, HEAD + position] = found
        idle += blocks[found, USERS] == 0
    if (new + size - 1) // size > blocks[blocks.shape[0] - 1, USERS] - idle:
        return 0
    for position in range(cached):
        found = slots[slot, HEAD + position]
        if blocks[found, USERS] == 0:
            unlink_block(blocks, found)
        blocks[found, USERS] += 1
    slots[slot, HELD] = cached
    slots[slot, COMPUTED] = cached * size
    grow(slots, blocks, holder, limits, slot, new)
    return int(new)


@compiled
def next_waiting(state: State, demand: Demand, marks: Ints, clock_s: float) -> int:
    """The slot of the request at the head of the queue, preempted ones first; or NOTHING."""
    if marks[PREEMPTED] > 0:
        return int(state.preempted[marks[PREEMPTED] - 1])
    request = marks[NEXT]
    if request == demand.ready_s.size or demand.ready_s[request] > clock_s:
        return NOTHING
    slot = state.spare[marks[SPARE] - 1]
    state.slots[slot, REQUEST] = request
    state.slots[slot, PROMPT] = state.slots[slot, KNOWN] = demand.prompt[request]
    state.slots[slot, END] = demand.prompt[request] + demand.output[request]
    state.slots[slot, FIRST_KEY] = demand.first_key[request]
    return int(slot)


@compiled
def start_request(state: State, outcome: Outcome, slot: int, clock_s: float) -> None:
    """Move the request at the head of the queue among the running ones."""
    marks = outcome.marks
    if marks[PREEMPTED] > 0:
        marks[PREEMPTED] -= 1
    else:
        marks[NEXT] += 1
        marks[SPARE] -= 1
        request = state.slots[slot, REQUEST]
        outcome.admitted_s[request] = clock_s
        outcome.cached[request] = state.slots[slot, COMPUTED]
    state.running[marks[RUNNING]] = slot
    state.coast[marks[RUNNING]] = 0
    marks[RUNNING] += 1


@compiled
def schedule_waiting(
    state: State, demand: Demand, limits: Limits, outcome: Outcome, load: Load, clock_s: float
) -> Load:
    """Admit waiting requests, first come first served, while budget, slots and blocks last."""
    tokens, emitting, marks = load.tokens, load.emitting, outcome.marks
    while tokens < limits.batched_tokens and marks[RUNNING] < limits.sequences:
        slot = next_waiting(state, demand, marks, clock_s)
        if slot == NOTHING:
            break
        new = admit(state, limits, slot, limits.batched_tokens - tokens)
        if new == 0:
            break
        start_request(state, outcome, slot, clock_s)
        state.slots[slot, SHARE] = new
        tokens += new
        emitting += state.slots[slot, COMPUTED] + new == state.slots[slot, KNOWN]
    return Load(tokens, emitting, load.context)


@compiled
def finish_step(state: State, limits: Limits, outcome: Outcome, seen_s: float) -> None:
    """Advance every running request by its share; those whose answer is whole leave."""
    slots, running, coast = state.slots, state.running, state.coast
    marks, may_coast = outcome.marks, outcome.tokens_s.size == 0
    marks[COAST_CONTEXT] += marks[COASTING]
    kept = 0
    for place in range(marks[RUNNING]):
        slot, left = running[place], coast[place] - 1
        if left == 0:
            stop_coasting(slots, marks, slot, 0)
        elif left < 0:
            left = 0
            if advance(slots, outcome, slot, seen_s):
                finish_request(state, outcome, slot, seen_s)
                continue
            if may_coast:
                left = start_coasting(slots, marks, slot, limits.block_tokens)
        running[kept], coast[kept] = slot, left
        kept += 1
    marks[RUNNING] = kept


@compiled
def advance(slots: Ints, outcome: Outcome, slot: int, seen_s: float) -> bool:
    """Add a request's share to what is computed of it; True when its last token was given."""
    slots[slot, COMPUTED] += slots[slot, SHARE]
    known = slots[slot, KNOWN]
    if slots[slot, COMPUTED] < known:
        return False
    slots[slot, KNOWN] = known + 1
    made = known - slots[slot, PROMPT]
    if made == 0:
        outcome.first_s[slots[slot, REQUEST]] = seen_s
        outcome.marks[ANSWERING] += slots[slot, PROMPT]
    if outcome.tokens_s.size > 0:
        outcome.tokens_s[outcome.first_token[slots[slot, REQUEST]] + made] = seen_s
    return bool(known + 1 == slots[slot, END])


@compiled
def finish_request(state: State, outcome: Outcome, slot: int, seen_s: float) -> None:
    """Note a request's end and give its blocks and its slot back."""
    marks = outcome.marks
    outcome.last_s[state.slots[slot, REQUEST]] = seen_s
    release_blocks(state.slots, state.blocks, slot)
    state.spare[marks[SPARE]] = slot
    marks[SPARE] += 1
    marks[FINISHED] += 1


def new_state(demand: Demand, limits: Limits, marks: Ints) -> State:
    """An engine that has just started: every slot spare, every block free, in order."""
    size, end = limits.sequences, limits.blocks
    blocks = np.zeros((end + 1, 4), np.int64)
    blocks[:, BEFORE] = np.arange(-1, end)
    blocks[:, AFTER] = np.arange(1, end + 2)
    blocks[:, CONTENT] = NOTHING
    blocks[0, BEFORE] = end
    blocks[end, AFTER] = 0
    blocks[end, USERS] = end
    marks[SPARE] = size
    return State(
        np.full((size, HEAD + limits.row), NOTHING, np.int64),
        blocks,
        np.full(demand.keys, NOTHING, np.int32),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.arange(size - 1, -1, -1),
    )


@compiled
def has_work(demand: Demand, marks: Ints) -> bool:
    """Whether any request that was sent is not yet served."""
    return bool(marks[FINISHED] < demand.ready_s.size)


@compiled
def next_step_s(demand: Demand, marks: Ints, clock_s: float) -> float:
    """When the next step starts: now, or for an idle engine when its next request is ready."""
    if marks[RUNNING] == 0 and marks[PREEMPTED] == 0:
        return float(max(clock_s, demand.ready_s[marks[NEXT]]))
    return clock_s


@compiled
def begin_step(
    state: State, demand: Demand, limits: Limits, cost: Cost, stream: Stream, outcome: Outcome
) -> None:
    """Schedule one step at the engine's clock and move the clock to the step's end."""
    marks, clocks_s = outcome.marks, outcome.clocks_s
    preemptions = marks[PREEMPTIONS]
    load = schedule_running(state, limits, outcome)
    if marks[PREEMPTIONS] == preemptions:
        load = schedule_waiting(state, demand, limits, outcome, load, clocks_s[CLOCK])
    duration_s = step_s(cost, load.tokens, load.emitting, load.context)
    clocks_s[CLOCK] += duration_s
    clocks_s[BUSY] += duration_s
    streamed_s = (
        max(clocks_s[CLOCK], clocks_s[STREAMED]) + stream.step + stream.token * load.emitting
    )
    clocks_s[STREAMED] = streamed_s + stream.stalls_s[marks[STEPS] % stream.stalls_s.size]
    marks[STEPS] += 1
    marks[TOKENS] += load.tokens
    marks[BLOCKS] = max(marks[BLOCKS], limits.blocks - state.blocks[limits.blocks, USERS])
    marks[SEQUENCES] = max(marks[SEQUENCES], marks[RUNNING])


@compiled
def run_event_loop(
    state: State, demand: Demand, limits: Limits, cost: Cost, stream: Stream, outcome: Outcome
) -> None:
    """Serve every request and fill in `outcome`; steps follow each other while there is work."""
    clocks_s = outcome.clocks_s
    while has_work(demand, outcome.marks):
        clocks_s[CLOCK] = next_step_s(demand, outcome.marks, clocks_s[CLOCK])
        begin_step(state, demand, limits, cost, stream, outcome)
        finish_step(state, limits, outcome, clocks_s[STREAMED])
