import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.simulation.engine import Engine, FrontEnd, inter_token_s, simulate_engine
from hetinfer.simulation.step_time import StepTime, step_time_s
from hetinfer.workload import Requests, fresh_requests, poisson_arrivals_s
from plain_twin import serve

STEP = StepTime(launch_s=0.003, weights_s=0.015, compute_s=8e-5, sequence_s=2e-5, context_s=1.4e-7)
ENGINE = Engine(20_000, 64, 512, STEP)
UNIT_STEP = StepTime(launch_s=1.0, weights_s=0.0, compute_s=0.0)


def some_requests(seed, n=60, rate=20.0, texts=None, longest=300):
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, longest, n)
    text = rng.integers(0, texts or n, n) if texts else np.arange(n)
    arrival_s = poisson_arrivals_s(n, rate, rng)
    return Requests(arrival_s, prompt[text], rng.integers(1, longest, n), text)


def assert_equals_twin(requests, engine, *, token_times):
    result = simulate_engine(requests, engine, token_times=token_times)
    twin = serve(requests, engine)
    first_s = [s.token_s[0] for s in twin.servings]
    assert (twin.steps, twin.computed_tokens) == (result.steps, result.computed_tokens)
    assert (twin.busy_s, twin.peak_blocks) == (result.busy_s, result.peak_blocks)
    assert np.array_equal(first_s - requests.arrival_s, result.ttft_s)
    assert result.finished_s.tolist() == [s.token_s[-1] for s in twin.servings]
    assert result.cached_tokens.tolist() == [s.cached for s in twin.servings]
    assert result.preemptions.tolist() == [s.preemptions for s in twin.servings]
    if token_times:
        assert result.token_s.tolist() == [t for s in twin.servings for t in s.token_s]


@pytest.mark.parametrize("token_times", [True, False])
@pytest.mark.parametrize(
    ("kv_tokens", "sequences", "budget"),
    [(20_000, 64, 512), (1_600, 64, 512), (700, 8, 16), (50_000, 4, 8192)],
)
@pytest.mark.parametrize("caching", [True, False])
def test_compiled_loop_and_plain_twin_agree_to_the_last_bit(
    kv_tokens, sequences, budget, caching, token_times
):
    front = FrontEnd(receive_s=0.004, step_s=0.001, token_s=1e-4)
    engine = Engine(kv_tokens, sequences, budget, STEP, front, prefix_caching=caching)
    requests = some_requests(1, texts=25)
    assert_equals_twin(requests, engine, token_times=token_times)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 25),
    rate=st.sampled_from([0.5, 30.0, 1e4]),
    engine=st.builds(
        Engine,
        kv_tokens=st.integers(160, 900),
        max_sequences=st.integers(1, 8),
        max_batched_tokens=st.integers(8, 64),
        step_time=st.just(STEP),
        prefix_caching=st.booleans(),
        block_tokens=st.sampled_from([1, 4, 16]),
    ),
)
def test_any_engine_agrees_with_the_plain_twin(seed, n, rate, engine):
    requests = some_requests(seed, n, rate, texts=max(1, n // 2), longest=60)
    assert_equals_twin(requests, engine, token_times=seed % 2 == 0)


def test_preemption_happens_where_the_twin_is_compared():
    engine = Engine(1_600, 64, 512, STEP)
    assert simulate_engine(some_requests(1, texts=25), engine).preemptions.sum() > 0


def test_one_request_alone_takes_its_prefill_and_a_step_for_each_further_token():
    requests = fresh_requests([5.0], [100], [4])
    result = simulate_engine(requests, ENGINE)
    prefill_s = step_time_s(STEP, 100, emitting=1)
    decodes_s = [step_time_s(STEP, 1, emitting=1, context_tokens=k) for k in (101, 102, 103)]
    assert math.isclose(prefill_s, result.ttft_s[0], rel_tol=1e-12)
    assert math.isclose(5.0 + prefill_s + sum(decodes_s), result.finished_s[0], rel_tol=1e-12)
    assert math.isclose(sum(decodes_s) / 3, result.tpot_s[0], rel_tol=1e-12)


def test_one_token_is_one_step_and_has_no_time_per_further_token():
    result = simulate_engine(fresh_requests([0.0], [10], [1]), ENGINE)
    assert result.steps == 1
    assert math.isnan(result.tpot_s[0])


def test_without_load_nothing_waits():
    result = simulate_engine(fresh_requests(np.arange(50) * 100.0, [64] * 50, [8] * 50), ENGINE)
    assert not result.queue_s.any()
    assert np.ptp(result.ttft_s) < 1e-9


def test_a_batch_of_one_serves_one_after_the_other():
    one = dataclasses.replace(ENGINE, max_sequences=1, step_time=UNIT_STEP)
    result = simulate_engine(fresh_requests([0.0, 0.0, 0.0], [8] * 3, [5] * 3), one)
    assert result.finished_s.tolist() == [5.0, 10.0, 15.0]


def test_long_prompt_is_prefilled_in_chunks_of_the_budget():
    engine = dataclasses.replace(ENGINE, max_sequences=8, max_batched_tokens=64)
    result = simulate_engine(fresh_requests([0.0], [200], [1]), engine)
    assert result.steps == 4  # 64 + 64 + 64 + 8


def test_single_server_with_equal_services_waits_as_m_d_1():
    rng = np.random.default_rng(42)
    one = Engine(64, 1, 64, UNIT_STEP)
    n, load = 200_000, 0.6
    result = simulate_engine(
        fresh_requests(poisson_arrivals_s(n, load, rng), [8] * n, [1] * n), one
    )
    assert result.queue_s.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.03)


def test_single_server_with_exponential_services_waits_as_m_m_1():
    rng = np.random.default_rng(42)
    n, load, mean_tokens = 200_000, 0.6, 1000
    tokens = np.maximum(1, np.round(rng.exponential(mean_tokens, n))).astype(int)
    per_token = StepTime(launch_s=0.0, weights_s=0.0, compute_s=1 / mean_tokens)
    one = Engine(40_000, 1, 40_000, per_token)
    requests = fresh_requests(poisson_arrivals_s(n, load, rng), tokens, np.ones(n, int))
    result = simulate_engine(requests, one)
    assert result.queue_s.mean() == pytest.approx(load / (1 - load), rel=0.05)


def test_front_end_is_a_queue_of_its_own():
    front = FrontEnd(step_s=3.0)
    engine = dataclasses.replace(ENGINE, step_time=UNIT_STEP, front_end=front)
    result = simulate_engine(fresh_requests([0.0], [4], [3]), engine, token_times=True)
    assert result.token_s.tolist() == [4.0, 7.0, 10.0]
    assert result.busy_s == 3.0


def test_stalls_come_from_the_generator_alone():
    front = FrontEnd(stall_s=0.1, stall_frac=0.2)
    engine = dataclasses.replace(ENGINE, front_end=front)
    runs = [
        simulate_engine(some_requests(3), engine, np.random.default_rng(seed)).ttft_s
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize("kv_tokens", [20_000, 1_600])
def test_every_token_is_computed_once_without_preemption_and_none_is_lost(kv_tokens):
    requests = some_requests(5, texts=20)
    result = simulate_engine(requests, dataclasses.replace(ENGINE, kv_tokens=kv_tokens))
    needed = requests.prompt_tokens + requests.output_tokens - 1
    computed = int((needed - result.cached_tokens).sum())
    assert (computed == result.computed_tokens) == (result.preemptions.sum() == 0)
    assert computed <= result.computed_tokens
    assert result.peak_blocks <= kv_tokens // 16


def test_engine_works_whenever_there_is_work():
    result = simulate_engine(some_requests(6, rate=1e6), ENGINE)
    assert result.busy_s == pytest.approx(result.finished_s.max())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), kv_tokens=st.integers(700, 4000))
def test_first_come_is_first_admitted_and_times_are_ordered(seed, kv_tokens):
    result = simulate_engine(some_requests(seed), dataclasses.replace(ENGINE, kv_tokens=kv_tokens))
    admitted_s = result.requests.arrival_s + result.queue_s
    assert (np.diff(admitted_s) > -1e-9).all()  # a sum of differences rounds
    assert (result.queue_s >= 0).all()
    assert (result.ttft_s > result.queue_s).all()
    assert (result.finished_s > result.requests.arrival_s + result.ttft_s - 1e-9).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.floats(0.3, 0.95))
def test_a_faster_engine_finishes_earlier(seed, factor):
    requests = some_requests(seed)
    faster = StepTime(**{name: value * factor for name, value in STEP.__dict__.items()})
    slow = simulate_engine(requests, ENGINE)
    fast = simulate_engine(requests, dataclasses.replace(ENGINE, step_time=faster))
    assert fast.finished_s.max() < slow.finished_s.max()
    assert fast.ttft_s.mean() < slow.ttft_s.mean()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.floats(1.3, 4.0))
def test_waiting_grows_with_the_rate(seed, factor):
    requests = some_requests(seed, n=200)
    denser = dataclasses.replace(requests, arrival_s=requests.arrival_s / factor)
    assert (
        simulate_engine(denser, ENGINE).ttft_s.mean()
        >= simulate_engine(requests, ENGINE).ttft_s.mean() * 0.99
    )


@given(st.permutations(range(20)))
@settings(max_examples=20, deadline=None)
def test_names_of_prompts_do_not_matter(names):
    requests = some_requests(7, texts=20)
    renamed = dataclasses.replace(requests, prompt_id=np.array(names)[requests.prompt_id])
    assert np.array_equal(
        simulate_engine(requests, ENGINE).finished_s, simulate_engine(renamed, ENGINE).finished_s
    )


def test_repeated_prompt_is_cached_but_for_its_last_tokens():
    requests = Requests(
        np.array([0.0, 10.0, 20.0]),
        np.array([100, 100, 96]),
        np.array([2, 2, 2]),
        np.array([0, 0, 1]),
    )
    again = dataclasses.replace(requests, prompt_id=np.array([0, 0, 1]))
    assert simulate_engine(again, ENGINE).cached_tokens.tolist() == [0, 96, 0]
    off = dataclasses.replace(ENGINE, prefix_caching=False)
    assert not simulate_engine(again, off).cached_tokens.any()


def test_wholly_cached_prompt_computes_its_last_block_again():
    requests = Requests(
        np.array([0.0, 9.0]), np.array([96, 96]), np.array([1, 1]), np.array([0, 0])
    )
    assert simulate_engine(requests, ENGINE).cached_tokens.tolist() == [0, 80]


def test_least_recently_used_prompt_leaves_the_cache_first():
    arrival_s = np.arange(4) * 10.0
    requests = Requests(arrival_s, np.full(4, 64), np.full(4, 1), np.array([0, 1, 2, 1]))
    cached = simulate_engine(requests, dataclasses.replace(ENGINE, kv_tokens=160)).cached_tokens
    assert cached.tolist() == [0, 0, 0, 48]
    first_again = dataclasses.replace(requests, prompt_id=np.array([0, 1, 2, 0]))
    cached = simulate_engine(first_again, dataclasses.replace(ENGINE, kv_tokens=160)).cached_tokens
    assert cached[3] < 48


def test_golden_trace_of_a_full_cache():
    """Worked out by hand: the first request's third block preempts the second, whose head stays."""
    engine = Engine(64, 3, 16, UNIT_STEP, block_tokens=16)
    requests = fresh_requests([0.0, 0.0, 14.5], [20, 10, 8], [16, 16, 2])
    result = simulate_engine(requests, engine, token_times=True)
    first, second, third = range(2, 18), [*range(2, 15), 18, 19, 20], [18, 19]
    assert result.token_s.tolist() == [*first, *second, *third]
    assert result.preemptions.tolist() == [0, 1, 0]
    assert result.steps == 20


def test_inter_token_gaps_skip_the_step_from_one_request_to_the_next():
    engine = dataclasses.replace(ENGINE, step_time=UNIT_STEP)
    requests = fresh_requests([0.0, 10.0], [4, 4], [3, 2])
    gaps_s = inter_token_s(simulate_engine(requests, engine, token_times=True))
    assert gaps_s.tolist() == [1.0, 1.0, 1.0]


def test_inter_token_gaps_need_token_times():
    with pytest.raises(InputError, match="no token times"):
        inter_token_s(simulate_engine(fresh_requests([0.0], [4], [3]), ENGINE))


@pytest.mark.parametrize(
    ("requests", "engine", "message"),
    [
        (fresh_requests([], [], []), ENGINE, "arrays of requests"),
        (fresh_requests([1.0, 0.5], [4, 4], [1, 1]), ENGINE, "negative or unsorted"),
        (fresh_requests([-1.0], [4], [1]), ENGINE, "negative or unsorted"),
        (fresh_requests([math.nan], [4], [1]), ENGINE, "negative or unsorted"),
        (fresh_requests([0.0], [0], [1]), ENGINE, "prompt_tokens"),
        (fresh_requests([0.0], [1], [0]), ENGINE, "output_tokens"),
        (fresh_requests([0.0], [19_999], [5]), ENGINE, "longer than the KV cache"),
        (fresh_requests([0.0], [4], [1]), Engine(100, 0, 10, STEP), "max_sequences"),
        (fresh_requests([0.0], [4], [1]), Engine(100, 20, 10, STEP), "budget too small"),
        (
            fresh_requests([0.0], [4], [1]),
            dataclasses.replace(ENGINE, front_end=FrontEnd(stall_s=1.0, stall_frac=0.1)),
            "no rng",
        ),
        (
            Requests(np.zeros(2), np.array([4, 5]), np.ones(2, int), np.zeros(2, int)),
            ENGINE,
            "one id with two lengths",
        ),
        (
            fresh_requests([0.0], [4], [1]),
            dataclasses.replace(ENGINE, step_time=StepTime(-1.0, 0.0, 0.0)),
            "step time not usable",
        ),
    ],
)
def test_unusable_input_is_a_clear_error(requests, engine, message):
    with pytest.raises(InputError, match=message):
        simulate_engine(requests, engine)
