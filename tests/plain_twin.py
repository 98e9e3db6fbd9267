"""The engine of `event_loop.py` in plain Python: one request, one token, one block at a time."""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import sqrt


@dataclass
class Serving:
    number: int
    prompt: int
    output: int
    text: int
    ready_s: float
    known: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    admitted_s: float | None = None
    cached: int = 0
    preemptions: int = 0

    def key(self, position, size):
        if position < self.prompt // size:
            return ("prompt", self.text, position)
        return ("answer", self.number, position)


@dataclass
class Cache:
    size: int
    caching: bool
    free: OrderedDict
    users: dict
    content: dict = field(default_factory=dict)
    holder: dict = field(default_factory=dict)

    def take(self):
        block, _ = self.free.popitem(last=False)
        self.content[block] = None
        self.users[block] = 1
        return block

    def find(self, serving, position):
        key = serving.key(position, self.size)
        if key[0] == "prompt":
            block = self.holder.get(key)
        else:
            block = dict(enumerate(serving.left_behind)).get(position)
        return block if block is not None and self.content[block] == key else None

    def grow(self, serving, new):
        after = serving.computed + new
        lacking = -(-after // self.size) - len(serving.blocks)
        if lacking > len(self.free):
            return False
        serving.blocks += [self.take() for _ in range(lacking)]
        for position in range(serving.computed // self.size, after // self.size):
            self.note(serving, position)
        return True

    def note(self, serving, position):
        key = serving.key(position, self.size)
        if not self.caching or (key[0] == "prompt" and self.find(serving, position) is not None):
            return
        self.content[serving.blocks[position]] = key
        self.holder[key] = serving.blocks[position]

    def release(self, serving):
        for block in reversed(serving.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free[block] = None
        serving.left_behind, serving.blocks = serving.blocks, []

    def hits(self, serving):
        found = []
        for position in range((serving.known - 1) // self.size if self.caching else 0):
            block = self.find(serving, position)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, serving, budget):
        found = self.hits(serving)
        new = min(serving.known - len(found) * self.size, budget)
        idle = sum(self.users[block] == 0 for block in found)
        if -(-new // self.size) > len(self.free) - idle:
            return 0
        for block in found:
            self.free.pop(block, None)
            self.users[block] += 1
        serving.blocks, serving.computed = found, len(found) * self.size
        assert self.grow(serving, new)
        return new


@dataclass
class Twin:
    servings: list
    steps: int = 0
    computed_tokens: int = 0
    busy_s: float = 0.0
    peak_blocks: int = 0


def serve(requests, engine):
    """Serve the requests as `simulate_engine` would, without stalls of the front end."""
    n_blocks = engine.kv_tokens // engine.block_tokens
    cache = Cache(
        engine.block_tokens,
        engine.prefix_caching,
        OrderedDict.fromkeys(range(n_blocks)),
        dict.fromkeys(range(n_blocks), 0),
        dict.fromkeys(range(n_blocks)),
    )
    waiting = [
        Serving(i, int(p), int(o), int(t), float(a) + engine.front_end.receive_s, int(p))
        for i, (a, p, o, t) in enumerate(
            zip(
                requests.arrival_s,
                requests.prompt_tokens,
                requests.output_tokens,
                requests.prompt_id,
                strict=True,
            )
        )
    ]
    twin, running, clock_s, streamed_s = Twin(list(waiting)), [], 0.0, 0.0
    while waiting or running:
        if not running and not waiting[0].preemptions:
            clock_s = max(clock_s, waiting[0].ready_s)
        shares, context = schedule(cache, engine, running, waiting, clock_s)
        emitting = [s for s, new in shares if s.computed + new == s.known]
        tokens = sum(new for _, new in shares)
        step_s = plain_step_s(engine.step_time, tokens, len(emitting), context)
        clock_s += step_s
        front = engine.front_end
        streamed_s = max(clock_s, streamed_s) + front.step_s + front.token_s * len(emitting)
        twin.steps += 1
        twin.computed_tokens += tokens
        twin.busy_s += step_s
        twin.peak_blocks = max(twin.peak_blocks, n_blocks - len(cache.free))
        for serving, new in shares:
            serving.computed += new
            if serving.computed == serving.known:
                serving.known += 1
                serving.token_s.append(streamed_s)
            if len(serving.token_s) == serving.output:
                cache.release(serving)
                running.remove(serving)
    return twin


def schedule(cache, engine, running, waiting, clock_s):
    budget, shares, preempted, place = engine.max_batched_tokens, [], False, 0
    while place < len(running):
        serving = running[place]
        new = min(serving.known - serving.computed, budget)
        while running[place:] and not cache.grow(serving, new):
            last = running.pop()
            cache.release(last)
            last.computed, preempted = 0, True
            last.preemptions += 1
            waiting.insert(0, last)
        if not running[place:]:
            break
        shares.append((serving, new))
        budget -= new
        place += 1
    context = sum(s.known for s, _ in shares if s.computed + 1 == s.known)
    while not preempted and waiting and budget > 0 and len(running) < engine.max_sequences:
        serving = waiting[0]
        if serving.ready_s > clock_s:
            break
        new = cache.admit(serving, budget)
        if new == 0:
            break
        if serving.admitted_s is None:
            serving.admitted_s, serving.cached = clock_s, serving.computed
        running.append(waiting.pop(0))
        shares.append((serving, new))
        budget -= new
    return shares, context


def plain_step_s(step_time, tokens, emitting, context):
    compute = step_time.compute_s * tokens
    return (
        step_time.launch_s
        + sqrt(step_time.weights_s * step_time.weights_s + compute * compute)
        + step_time.communication_s * tokens
        + step_time.sequence_s * emitting
        + step_time.context_s * context
    )
