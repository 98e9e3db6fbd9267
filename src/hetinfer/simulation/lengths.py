"""Lengths of the study's 200 requests: an estimate, since its files hold only their sums.

Reconstructed in two stages, each by simulated annealing on the statistics of the fitted rates (1, 8
and 32) alone, alternating with fits of the engines:

1. Prompt lengths, and the most tokens that each answer may have, common to all models: from seven
   configurations whose models answered (nearly) to the end, for 200 prompts drawn as lognormal with
   log-deviation 1.25 and answers as gamma with shape 0.9. Other tokenizers scale all lengths.
2. Each model's answers, none (but for a tokenizer's difference) longer than stage 1 allows: models
   that stop early produced fewer tokens, and which answers they cut decides when the last one ends.
   Where the cache cannot hold all prompts at once, its size and the lengths explain each other: a
   second search follows, from several sizes, hotter, and with answers that stop at once (a model
   given a bare prompt may end with its first token). What has the smallest loss is kept.

Four hundred unknowns against a few hundred statistics: the lengths are one of many sets that
explain the runs, not the ones that were sent. Two independent reconstructions show how much that
matters: what is quoted is simulated with the one of smaller cost, and its difference to the other
belongs to the uncertainty.

Forms tried, with the errors of throughput at validation rates (median and 90th percentile, one
H100, up to 14B): stage 1 alone 2.6 and 7.1 %; both stages with picks at random and 700 proposals a
round 0.8 and 5.0 %; a looser fit of durations and 900, 1.6 and 8.6 %; picks of late and long
requests for half of the proposals and 2,500 of them, 0.6 and 2.3 %. All of these cut no answer
below four tokens, and left QwQ-32B a fit of cost 976: with its cache held at 54,000 tokens, so that
nothing waits, mean TPOT at the highest rate was half as much again as recorded, that is, too many
requests were decoding while prompts were computed. The cost of its fit at 35,000, 44,000 and 54,000
tokens: 959, 1162, 1071; with answers that stop at once and a hotter start, 770, 514, 588; with six
rounds of 3,000 proposals, at 44,000, 312. For every model, one-token answers and four rounds of
2,000 gave lower costs and errors at validation rates (0.4 and 1.8 %), but the step times of one
card then agreed less from model to model (one left out: median TPOT 3.4 % off, not 2.4): lengths
had taken up what is the engine's. They are used where the cache is scarce alone, in five rounds.
For Meta-Llama-3-70B in 16 bits on two H100s, at 26,000 to 36,000 tokens, none of these, nor a start
five times hotter, brought the cost below 1,460.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from hetinfer.hardware import find_gpu, find_model
from hetinfer.runs import CONFIGURATION
from hetinfer.simulation.calibration import (
    FITTED_RATES,
    fit_configuration,
    fitted_statistics,
    prior_engine,
    residuals,
    scaled_engine,
    select_runs,
)
from hetinfer.simulation.engine import Engine
from hetinfer.simulation.replay import (
    replay_statistics,
    study_replay,
    with_lengths,
)
from hetinfer.workload import STUDY_PROMPTS, Floats, Ints, Lengths

BASE_PROMPT_TOKENS = 41_650  # of the tokenizer that most base configurations share
BASE_ANSWER_TOKENS = 43_650  # just above the most that any of their runs produced
PROMPT_LOG_DEVIATION = 1.25
ANSWER_SHAPE = 0.9
FEWEST_TOKENS = 4  # the benchmark drops shorter prompts and answers
FEWEST_ANSWER_TOKENS = 1  # of a model that stops at once
MOST_TOKENS = 1020  # and prompts above 1024
BASE_CONFIGURATIONS = (
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "h100-pcie", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "h100-pcie", 1),
    ("nvidia/AceMath-7B-Instruct", "h100-pcie", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "h100-pcie", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "rtx-4090", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "rtx-4090", 1),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "h100-pcie", 1),
)
BASE_TEMPERATURES = tuple(20.0 * 0.02 ** (k / 6) for k in range(7))  # of the loss, round by round
MODEL_TEMPERATURES = (6.0, 3.0, 1.0)
AGAIN_TEMPERATURES = (30.0, 12.0, 5.0, 2.0, 1.0)  # of the second search
AT_ONCE_FRAC = 0.15  # of its proposals: an answer that stops at once
CACHE_STARTS = (1.0, 1.25)  # of the physical size, where the cache cannot hold all prompts
COOLING = 0.3  # within a round
SHIFTED_TOKENS = (30, 200)  # mean of what a proposal moves from one request to another
FAR_SHIFT_FRAC = 0.2  # of the shifts have the larger mean
TOKENIZER_SLACK = 1.05  # by which another tokenizer may count an answer longer than the rest
BISECTIONS = 60
CRITICAL_FRAC = 0.5  # of the picks: what decides a run's duration
CRITICAL = 30  # latest requests, and longest answers
Loss = Callable[[Lengths, float], float]
Proposal = Callable[[Lengths, np.random.Generator], Lengths]


@dataclass(frozen=True)
class _Part:
    """One configuration's runs with what the annealing needs of them."""

    runs: pd.DataFrame
    recorded: Floats
    prompt_tokens: float
    answer_tokens: float

    @staticmethod
    def of(runs: pd.DataFrame) -> "_Part":
        recorded = fitted_statistics(runs, FITTED_RATES)
        return _Part(runs, recorded, runs["input_tokens"].mean(), runs["output_tokens"].mean())


def first_lengths(rng: np.random.Generator) -> Lengths:
    """Lengths of the assumed distributions in random order, with the recorded sums."""
    ranks = (np.arange(STUDY_PROMPTS) + 0.5) / STUDY_PROMPTS
    prompts = np.exp(PROMPT_LOG_DEVIATION * stats.norm.ppf(ranks))
    answers = stats.gamma.ppf(ranks, ANSWER_SHAPE)
    return Lengths(
        _summing_to(rng.permutation(prompts), BASE_PROMPT_TOKENS),
        _summing_to(rng.permutation(answers), BASE_ANSWER_TOKENS),
    )


def reconstruct_base(runs: pd.DataFrame, rng: np.random.Generator, proposals: int) -> Lengths:
    """Stage 1: prompt lengths and longest answers, from the base configurations' fitted rates."""
    lengths = first_lengths(rng)
    parts = [_Part.of(select_runs(runs, *keys)) for keys in BASE_CONFIGURATIONS]

    def own(base: Lengths, part: _Part) -> Lengths:
        return scale_lengths(base, part.prompt_tokens, part.answer_tokens)

    began = (lengths, [_prior(part.runs) for part in parts])
    return _fit_and_anneal(began, parts, own, shift_tokens, (BASE_TEMPERATURES, proposals), rng)[0]


def reconstruct_model(
    runs: pd.DataFrame, base: Lengths, rng: np.random.Generator, proposals: int
) -> Lengths:
    """Stage 2: one model's answers, none longer than the base's, from its configurations' runs.

    Several consumer cards are left out: their host, not the lengths, decides their statistics.
    """
    several = (runs["gpu"] == "rtx-4090") & (runs["gpu_count"] > 1)
    parts = [_Part.of(part) for _, part in runs[~several].groupby(["gpu", "gpu_count"])]
    tokenizer = parts[0].prompt_tokens / base.prompt_tokens.sum()
    answer_tokens = tokenizer * base.output_tokens.sum()
    most = scale_lengths(base, parts[0].prompt_tokens, answer_tokens)
    lengths = cut_short(most, round(parts[0].answer_tokens), rng)
    longest = np.round(TOKENIZER_SLACK * most.output_tokens).astype(np.int64)
    longest = np.maximum(longest, lengths.output_tokens)
    began = (lengths, [_prior(part.runs) for part in parts])
    cool, hot = (MODEL_TEMPERATURES, proposals), (AGAIN_TEMPERATURES, proposals)
    found = [_fit_and_anneal(began, parts, _as_it_is, _recutting(longest), cool, rng)]
    propose = _recutting(longest, at_once_frac=AT_ONCE_FRAC)
    for engines in _scarce_starts(parts):
        again, own_rng = (found[0][0], engines), rng.spawn(1)[0]  # other models' draws stay theirs
        found.append(_fit_and_anneal(again, parts, _as_it_is, propose, hot, own_rng))
    return min(found, key=lambda pair: pair[1])[0]


def anneal(
    lengths: Lengths,
    loss: Loss,
    propose: Proposal,
    rng: np.random.Generator,
    schedule: tuple[float, int],
) -> Lengths:
    """Simulated annealing: the best lengths met; `schedule` is first temperature and proposals.

    The threshold is drawn before the loss, which may stop summing once it is above.
    """
    hottest, proposals = schedule
    current = best = loss(lengths, np.inf)
    kept = lengths
    for step in range(proposals):
        temperature = hottest * COOLING ** (step / proposals)
        threshold = current - temperature * np.log(rng.random())
        candidate = propose(lengths, rng)
        value = loss(candidate, threshold)
        if value <= threshold:
            lengths, current = candidate, value
            if value < best:
                kept, best = candidate, value
    return kept


def shift_tokens(lengths: Lengths, rng: np.random.Generator) -> Lengths:
    """Swap two requests' prompt or answer lengths, or move some tokens from one to the other."""
    name = "output_tokens" if rng.random() < 0.65 else "prompt_tokens"
    tokens = getattr(lengths, name).copy()
    one, other = pick_request(lengths, rng), pick_request(lengths, rng)
    if rng.random() < 0.5:
        tokens[one], tokens[other] = tokens[other], tokens[one]
    else:
        one, other = (one, other) if rng.random() < 0.5 else (other, one)
        room = min(tokens[other] - FEWEST_TOKENS, MOST_TOKENS - tokens[one])
        mean = SHIFTED_TOKENS[int(rng.random() < FAR_SHIFT_FRAC)]
        moved = min(1 + int(rng.exponential(mean)), max(0, room))
        tokens[one] += moved
        tokens[other] -= moved
    return replace(lengths, **{name: tokens})


def scale_lengths(lengths: Lengths, prompt_tokens: float, answer_tokens: float) -> Lengths:
    """Lengths in proportion, with (but for rounding) the given sums: another tokenizer's."""
    prompt, output = lengths.prompt_tokens, lengths.output_tokens
    return Lengths(
        np.maximum(FEWEST_TOKENS, np.round(prompt * (prompt_tokens / prompt.sum()))).astype(
            np.int64
        ),
        np.maximum(2, np.round(output * (answer_tokens / output.sum()))).astype(np.int64),
    )


def pick_request(lengths: Lengths, rng: np.random.Generator) -> int:
    """A request to change: often one that can be the last to end, being late or long."""
    n = lengths.output_tokens.size
    if rng.random() > CRITICAL_FRAC:
        return int(rng.integers(n))
    from_end = int(rng.integers(min(n, CRITICAL)))
    if rng.random() < 0.5:
        return n - 1 - from_end
    return int(np.argsort(lengths.output_tokens, kind="stable")[n - 1 - from_end])


def cut_short(most: Lengths, answer_tokens: int, rng: np.random.Generator) -> Lengths:
    """Answers with the given sum: random ones cut short, or all lengthened if there are too few."""
    answers = most.output_tokens.copy()
    if answers.sum() <= answer_tokens:
        return replace(
            most, output_tokens=np.ceil(answers * answer_tokens / answers.sum()).astype(int)
        )
    while (excess := int(answers.sum()) - answer_tokens) > 0:
        request = rng.integers(answers.size)
        least = min(FEWEST_TOKENS, answers[request])
        cut = int((answers[request] - least) * rng.uniform(0.3, 1))
        answers[request] -= min(excess, cut)
    return replace(most, output_tokens=answers)


def _recutting(longest: Ints, at_once_frac: float = 0.0) -> Proposal:
    fewest = FEWEST_ANSWER_TOKENS if at_once_frac > 0 else FEWEST_TOKENS

    def propose(lengths: Lengths, rng: np.random.Generator) -> Lengths:
        """Cut one answer, or restore one, and settle the sum with others in random order."""
        answers = lengths.output_tokens.copy()
        shortened = np.flatnonzero(answers < longest)
        one = pick_request(lengths, rng)
        if at_once_frac > 0 and rng.random() < at_once_frac:
            wanted = fewest
        elif rng.random() < 0.5 or shortened.size == 0:
            wanted = int(rng.integers(min(fewest, longest[one]), longest[one] + 1))
        else:
            one = int(rng.choice(shortened))
            wanted = int(longest[one])
        owed = int(answers[one]) - wanted
        answers[one] = wanted
        for other in rng.permutation(answers.size):
            if owed == 0:
                return replace(lengths, output_tokens=answers)
            if other == one:
                continue
            room = longest[other] - answers[other]
            spare = int(max(0, answers[other] - fewest) * rng.uniform(0.3, 1))
            settled = min(owed, room) if owed > 0 else -min(-owed, spare)
            answers[other] += settled
            owed -= settled
        return lengths

    return propose


def _fit_and_anneal(
    began: tuple[Lengths, list[Engine]],
    parts: Sequence[_Part],
    own: Callable[[Lengths, _Part], Lengths],
    propose: Proposal,
    schedule: tuple[tuple[float, ...], int],
    rng: np.random.Generator,
) -> tuple[Lengths, float]:
    """The lengths that the last round found, and their loss; `began` has lengths and engines."""
    temperatures, proposals = schedule
    lengths, engines = began
    loss = _total_loss(engines, parts, own)
    for temperature in temperatures:
        engines = [
            fit_configuration(part.runs, own(lengths, part), start=engine).engine
            for part, engine in zip(parts, engines, strict=True)
        ]
        loss = _total_loss(engines, parts, own)
        lengths = anneal(lengths, loss, propose, rng, (temperature, proposals))
    return lengths, loss(lengths, np.inf)


def _as_it_is(lengths: Lengths, _: _Part) -> Lengths:
    return lengths


def _scarce_starts(parts: Sequence[_Part]) -> list[list[Engine]]:
    """Engines to search from again, none unless a cache is too small for all prompts at once."""
    priors = [_prior(part.runs) for part in parts]
    scarce = [e.kv_tokens < p.prompt_tokens for e, p in zip(priors, parts, strict=True)]
    return [
        [
            scaled_engine(prior, {"kv_tokens": factor if small else 1.0})
            for prior, small in zip(priors, scarce, strict=True)
        ]
        for factor in CACHE_STARTS
        if any(scarce)
    ]


def _prior(runs: pd.DataFrame) -> Engine:
    model, gpu, gpu_count = runs[CONFIGURATION].iloc[0]
    return prior_engine(find_model(model), find_gpu(gpu), int(gpu_count))


def _total_loss(
    engines: Sequence[Engine], parts: Sequence[_Part], own: Callable[[Lengths, _Part], Lengths]
) -> Loss:
    replay = study_replay(first_lengths(np.random.default_rng(0)), FITTED_RATES)

    def loss(lengths: Lengths, threshold: float) -> float:
        total = 0.0
        for engine, part in zip(engines, parts, strict=True):
            simulated = replay_statistics(engine, with_lengths(replay, own(lengths, part)))
            off = residuals(simulated, part.recorded)
            total += float(off @ off)
            if total > threshold:
                break
        return total

    return loss


def _summing_to(weights: Floats, total: float) -> Ints:
    """Whole numbers in proportion to the weights, within the benchmark's limits, of this sum."""

    def tokens(scale: float) -> Ints:
        return np.clip(np.round(weights * scale), FEWEST_TOKENS, MOST_TOKENS).astype(np.int64)

    low, high = 0.0, MOST_TOKENS / weights.min()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens(middle).sum() < total else (low, middle)
    return tokens(high)
