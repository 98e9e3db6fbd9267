import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.hardware import find_gpu, find_model
from hetinfer.runs import load_recorded
from hetinfer.simulation.calibration import prior_engine, select_runs
from hetinfer.simulation.lengths import (
    AT_ONCE_FRAC,
    BASE_ANSWER_TOKENS,
    BASE_CONFIGURATIONS,
    BASE_PROMPT_TOKENS,
    FEWEST_ANSWER_TOKENS,
    FEWEST_TOKENS,
    MOST_TOKENS,
    _Part,
    _recutting,
    _scarce_starts,
    anneal,
    cut_short,
    first_lengths,
    scale_lengths,
    shift_tokens,
)
from hetinfer.workload import Lengths

FIRST = first_lengths(np.random.default_rng(1))


def test_first_lengths_have_the_recorded_sums_and_the_benchmark_s_limits():
    assert FIRST.prompt_tokens.sum() == pytest.approx(BASE_PROMPT_TOKENS, abs=100)
    assert FIRST.output_tokens.sum() == pytest.approx(BASE_ANSWER_TOKENS, abs=100)
    assert FIRST.prompt_tokens.min() >= FEWEST_TOKENS
    assert FIRST.prompt_tokens.max() <= MOST_TOKENS


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_proposal_keeps_both_sums_and_the_limits(seed):
    proposed = shift_tokens(FIRST, np.random.default_rng(seed))
    for name in ("prompt_tokens", "output_tokens"):
        assert getattr(proposed, name).sum() == getattr(FIRST, name).sum()
        assert getattr(proposed, name).min() >= FEWEST_TOKENS
        assert getattr(proposed, name).max() <= max(MOST_TOKENS, getattr(FIRST, name).max())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(15_000, 43_000))
def test_answers_cut_short_have_the_sum_and_stay_below_the_longest(seed, total):
    rng = np.random.default_rng(seed)
    cut = cut_short(FIRST, total, rng)
    assert cut.output_tokens.sum() == total
    assert (cut.output_tokens <= FIRST.output_tokens).all()
    again = _recutting(FIRST.output_tokens)(cut, rng)
    assert again.output_tokens.sum() == total
    assert (again.output_tokens <= FIRST.output_tokens).all()
    assert (again.output_tokens >= 1).all()


def test_a_model_may_stop_at_once_and_others_answer_more():
    cut = cut_short(FIRST, 35_000, np.random.default_rng(0))
    propose = _recutting(FIRST.output_tokens, at_once_frac=AT_ONCE_FRAC)
    rng = np.random.default_rng(1)
    proposed = [propose(cut, rng) for _ in range(200)]
    at_once = [int((p.output_tokens == FEWEST_ANSWER_TOKENS).sum()) for p in proposed]
    assert np.mean(np.array(at_once) > 0) == pytest.approx(AT_ONCE_FRAC, abs=0.1)
    assert {int(p.output_tokens.sum()) for p in proposed} == {35_000}


def test_a_cache_too_small_for_all_prompts_is_searched_from_several_sizes():
    runs = load_recorded()
    scarce = _Part.of(select_runs(runs, "Qwen/QwQ-32B-Preview", "h100-pcie", 1))
    ample = _Part.of(select_runs(runs, *BASE_CONFIGURATIONS[0]))
    prior = prior_engine(find_model("QwQ-32B-Preview"), find_gpu("h100-pcie"), 1)
    starts = _scarce_starts([scarce, ample])
    assert [scarce_start.kv_tokens for scarce_start, _ in starts] == [
        prior.kv_tokens,
        round(1.25 * prior.kv_tokens),
    ]
    assert len({ample_start for _, ample_start in starts}) == 1
    assert _scarce_starts([ample]) == []


def test_too_many_answer_tokens_lengthen_all():
    longer = cut_short(FIRST, 50_000, np.random.default_rng(0))
    assert longer.output_tokens.sum() >= 50_000
    assert (longer.output_tokens >= FIRST.output_tokens).all()


def test_another_tokenizer_scales_all_lengths():
    scaled = scale_lengths(FIRST, 2 * BASE_PROMPT_TOKENS, BASE_ANSWER_TOKENS / 2)
    assert scaled.prompt_tokens.sum() == pytest.approx(2 * BASE_PROMPT_TOKENS, rel=0.01)
    assert scaled.output_tokens.sum() == pytest.approx(BASE_ANSWER_TOKENS / 2, rel=0.01)


def test_annealing_finds_a_hidden_order_and_never_hands_back_worse():
    rng = np.random.default_rng(3)
    small = Lengths(np.full(6, 10), np.array([60, 50, 40, 30, 20, 10]))
    wanted = np.array([10, 20, 30, 40, 50, 60])

    def loss(lengths: Lengths, threshold: float) -> float:
        return float(np.abs(lengths.output_tokens - wanted).sum())

    found = anneal(small, loss, shift_tokens, rng, (20.0, 4000))
    assert loss(found, np.inf) <= 20 < loss(small, np.inf)
    assert anneal(small, loss, shift_tokens, rng, (1e-9, 1)).output_tokens.sum() == 210
