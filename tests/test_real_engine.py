"""Measured runs in the simulator: a campaign whose engine is known is read, fitted and predicted.

The campaign is a simulated one, written as vLLM's client would have written it.
"""

import dataclasses
import json

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.figures.real_engine import draw_real_engine
from hetinfer.simulation.engine import Engine, FrontEnd, simulate_engine
from hetinfer.simulation.measured import (
    load_measured_runs,
    measured_replay,
    measured_statistics,
)
from hetinfer.simulation.real_engine import (
    fit_measured,
    real_engine_errors,
    real_engine_table,
    which_set,
)
from hetinfer.simulation.replay import STATISTICS, replay_statistics
from hetinfer.simulation.step_time import StepTime, step_time_s
from hetinfer.simulation.steps import fit_step_time, measured_steps
from hetinfer.workload import Requests, poisson_arrivals_s
from result_files import today, write

STEP = StepTime(launch_s=0.013, weights_s=0.008, compute_s=1e-3, sequence_s=2e-4, context_s=2e-6)
ENGINE = Engine(2048 * 16, 128, 2048, STEP, FrontEnd(0.01, token_s=8e-5), block_tokens=128)
RATES = (4.0, 2.0, 1.0)
PROMPTS = 40
LEAD_S = 0.05  # the client's, before its first request


def run_file(folder, simulated, place, about):
    """One run of a simulated server, the requests from `place` * PROMPTS on."""
    own = slice(place * PROMPTS, (place + 1) * PROMPTS)
    sent_s = simulated.requests.arrival_s[own]
    ends = np.cumsum(simulated.requests.output_tokens)[own]
    tokens = [
        simulated.token_s[end - n : end]
        for end, n in zip(ends, simulated.requests.output_tokens[own], strict=True)
    ]
    duration_s = float(simulated.finished_s[own].max() - sent_s[0]) + LEAD_S
    lengths = {
        "input_lens": simulated.requests.prompt_tokens[own].tolist(),
        "output_lens": simulated.requests.output_tokens[own].tolist(),
    }
    inputs, outputs = (sum(values) for values in lengths.values())
    summaries = {f"{s}_{n}_ms": None for s in ("mean", "median", "std", "p99")
                 for n in ("ttft", "tpot", "itl")}  # fmt: skip
    record = today(
        model_id="dummy/llama", backend="vllm", gpu="cpu", gpu_count="1", num_prompts=PROMPTS,
        request_rate=RATES[place], completed=PROMPTS, failed=0, duration=duration_s,
        date=f"20260301-08{about['replicate']:02d}{place:02d}", max_concurrency=None,
        total_input_tokens=inputs, total_output_tokens=outputs,
        request_throughput=PROMPTS / duration_s, output_throughput=outputs / duration_s,
        total_token_throughput=(inputs + outputs) / duration_s,
        ttfts=simulated.ttft_s[own].tolist(), itls=[np.diff(t).tolist() for t in tokens],
        start_times=(sent_s + 100).tolist(), variant=about["variant"], latencies=None,
        errors=[""] * PROMPTS,
        measurement={"position": place, "seed": 42, "fresh_prompts": False} | about,
        **summaries, **lengths,
    )  # fmt: skip
    write(folder / f"{about['variant']}_{RATES[place]:g}_r{about['replicate']}.json", record)


def run_server(folder, engine, variant, replicate):
    """A server's three runs, each of the same prompts, a thousand seconds apart."""
    rng = np.random.default_rng(replicate)
    starts_s = [1000.0 * place + poisson_arrivals_s(PROMPTS, rate, rng)
                for place, rate in enumerate(RATES)]  # fmt: skip
    text = np.tile(np.arange(PROMPTS), len(RATES))
    requests = Requests(
        np.concatenate(starts_s), np.full(text.size, 200), np.full(text.size, 32), text
    )
    simulated = simulate_engine(requests, engine, token_times=True)
    said = {"kv_blocks": engine.kv_tokens // engine.block_tokens, "max_seqs": 128}
    said |= {"block_tokens": 128, "max_batched_tokens": 2048}
    said |= {"prefix_caching": engine.prefix_caching}
    about = {"variant": variant, "replicate": replicate, "engine": said}
    for place in range(len(RATES)):
        run_file(folder, simulated, place, about)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    for replicate in (1, 2):
        run_server(folder, ENGINE, "cached", replicate)
        run_server(folder, dataclasses.replace(ENGINE, prefix_caching=False), "uncached", replicate)
    return load_measured_runs(folder)


def test_runs_come_server_by_server_in_the_order_they_were_made(runs):
    assert [(r.run.variant, r.replicate, r.position) for r in runs[:4]] == [
        ("cached", 1, 0), ("cached", 1, 1), ("cached", 1, 2), ("cached", 2, 0),
    ]  # fmt: skip
    assert runs[0].settings.kv_tokens == ENGINE.kv_tokens
    assert runs[0].settings.prefix_caching
    assert not runs[-1].settings.prefix_caching


def test_the_replay_on_the_engine_itself_gives_the_runs_back(runs):
    cached = [run for run in runs if run.run.variant == "cached"]
    simulated = replay_statistics(ENGINE, measured_replay(cached), inter_token=True)
    measured = measured_statistics(cached)
    assert simulated[:, :-5] == pytest.approx(measured[:, :-5], rel=1e-6)
    gaps = [STATISTICS.index(name) for name in ("itl_p50_s", "itl_p99_s", "itl_p100_s")]
    assert simulated[:, gaps] == pytest.approx(measured[:, gaps], rel=1e-6)


def test_runs_of_one_server_share_their_texts_and_servers_share_none(runs):
    replay = measured_replay([run for run in runs if run.run.variant == "cached"])
    text = replay.requests.prompt_id.reshape(6, PROMPTS)
    assert (text[0] == text[2]).all()
    assert not set(text[0]) & set(text[3])


def test_fresh_prompts_are_new_in_every_run(runs):
    fresh = [dataclasses.replace(run, fresh_prompts=True) for run in runs[:3]]
    assert np.unique(measured_replay(fresh).requests.prompt_id).size == 3 * PROMPTS


def test_sets_follow_the_split_that_was_decided(runs):
    sets = {(r.run.variant, r.run.rate_requests_per_s, r.replicate): which_set(r) for r in runs}
    assert sets["cached", 4.0, 1] == sets["cached", 1.0, 2] == "fitted"
    assert sets["cached", 2.0, 1] == sets["uncached", 4.0, 1] == "held out"
    assert {"fitted", "held out"} == set(sets.values())


def test_steps_carry_what_the_engine_computed(runs):
    steps = measured_steps([run for run in runs if run.run.variant == "cached"])
    expected_s = [
        step_time_s(STEP, row.tokens, emitting=row.emitting, context_tokens=row.context_tokens)
        for row in steps.itertuples()
    ]
    # the first token leaves one token's streaming after its step, whatever else that streams
    late_s = 8e-5 * steps["emitting"].max()
    close = np.isclose(steps["duration_s"], expected_s, rtol=0.0, atol=late_s)
    assert close.mean() > 0.99  # not where a new request joined in between
    assert {72, 200} <= set(steps["tokens"] - steps["emitting"] + 1)


def test_the_time_of_a_step_is_found_again_from_steps(runs):
    steps = measured_steps([run for run in runs if run.run.variant == "cached"])
    found = fit_step_time(steps, StepTime(0.01, 0.01, 5e-4, sequence_s=5e-5, context_s=1e-5))
    for tokens, emitting, context in ((1, 1, 200), (10, 10, 2200), (200, 5, 800), (800, 10, 1300)):
        load = {"emitting": emitting, "context_tokens": context}
        expected_s = step_time_s(STEP, tokens, **load)
        assert step_time_s(found, tokens, **load) == pytest.approx(expected_s, rel=0.02)
    with pytest.raises(InputError, match="too few steps"):
        fit_step_time(steps.head(50), STEP)


def test_a_known_engine_is_fitted_and_predicts_rates_and_a_variant_left_out(runs):
    engine = fit_measured(runs)
    table = real_engine_table(engine, runs)
    errors = real_engine_errors(table).set_index(["set", "statistic"])
    held_out = errors.loc["held out"]
    assert held_out.loc["throughput_requests_per_s", "median_frac"] < 0.002
    assert held_out.loc["tpot_p50_s", "median_frac"] < 0.02
    assert held_out.loc["ttft_p50_s", "median_frac"] < 0.04
    assert held_out.loc["tpot_p50_s", "n"] == 8
    assert held_out.loc["tpot_p50_s", "within"] == 8
    figure = draw_real_engine(table)
    assert [axis.get_title() for axis in figure.axes] == [
        "throughput (requests/s)", "median TPOT (s)", "median TTFT (s)",
    ]  # fmt: skip
    assert "n = 12 runs" in figure._supxlabel.get_text()


def test_unlike_runs_and_runs_without_a_word_on_the_engine_are_errors(runs, tmp_path):
    with pytest.raises(InputError, match="2 kinds of engine settings"):
        measured_replay(runs)
    with pytest.raises(InputError, match="no run to fit"):
        fit_measured([run for run in runs if run.run.variant == "uncached"])
    run_server(tmp_path, ENGINE, "cached", 1)
    path = tmp_path / "cached_4_r1.json"
    record = json.loads(path.read_text())
    record["measurement"]["engine"] = None
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="what hetinfer measure notes"):
        load_measured_runs(tmp_path)
