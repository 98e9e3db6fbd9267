import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetinfer.errors import InputError
from hetinfer.measurement.client import (
    Dataset,
    Load,
    client_command,
    dataset_flags,
    lags_s,
    pacing,
    schedule_s,
)

RANDOM = Dataset("random", input_tokens=200, output_tokens=32)


def test_the_schedule_is_the_studys_draws_scaled_to_the_window():
    np.random.seed(42)
    gaps = [np.random.gamma(shape=1.0, scale=1 / 4) for _ in range(60)]
    expected = np.cumsum(gaps) * (15.0 / np.sum(gaps))
    np.testing.assert_allclose(schedule_s(60, 4.0, 42), expected, rtol=1e-12)


def test_an_infinite_rate_sends_all_at_once():
    assert schedule_s(3, np.inf, 1).tolist() == [0.0, 0.0, 0.0]


def test_an_infinite_burstiness_sends_evenly():
    assert schedule_s(3, 2.0, 1, np.inf).tolist() == [0.5, 1.0, 1.5]


@given(st.integers(1, 50), st.floats(0.1, 50), st.integers(0, 2**31), st.floats(0.2, 8))
def test_a_schedule_rises_and_ends_at_prompts_over_rate(prompts, rate, seed, burstiness):
    times_s = schedule_s(prompts, rate, seed, burstiness)
    assert (np.diff(times_s) >= 0).all()
    assert pytest.approx(prompts / rate) == times_s[-1]


def test_lags_are_behind_the_request_that_lags_least():
    lags = lags_s(np.array([101.0, 102.5, 104.0]), np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(lags, [0.0, 0.5, 0.0])


def test_pacing_compares_offered_and_achieved_rate():
    kept = pacing(np.array([11.0, 12.0, 15.0]), np.array([1.0, 2.0, 3.0]))
    assert (kept.offered_requests_per_s, kept.achieved_requests_per_s) == (1.0, 0.5)
    assert (kept.lag_p50_s, kept.lag_max_s) == (0.0, 2.0)
    assert pytest.approx(2.0 / 3.0) == kept.last_lag_frac


def test_the_client_is_told_the_load_and_asked_for_detail():
    load = Load("dummy/llama-256x4", "folder", RANDOM, 60, 4.0, 42, flags=("--num-warmups", "1"))
    command = client_command(Path("py"), "http://127.0.0.1:1", load, Path("out/run.json"))
    told = dict(itertools.pairwise(command))
    assert (
        told["--num-prompts"],
        told["--request-rate"],
        told["--seed"],
    ) == ("60", "4", "42")
    assert (told["--random-input-len"], told["--random-output-len"]) == ("200", "32")
    assert told["--goodput"] == "ttft:2000"
    assert (told["--result-dir"], told["--result-filename"]) == ("out", "run.json")
    assert "--save-detailed" in command
    assert command[-2:] == ["--num-warmups", "1"]


def test_an_unknown_dataset_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown dataset"):
        dataset_flags(Dataset("sharegtp"))
    with pytest.raises(InputError, match="dataset missing"):
        dataset_flags(Dataset("sharegpt", path=str(tmp_path / "none.json")))


def test_a_file_of_prompts_is_handed_on(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}")
    assert ["--dataset-path", str(path)] == dataset_flags(Dataset("sharegpt", str(path)))[2:]
    assert "--skip-chat-template" in dataset_flags(Dataset("custom", str(path)))
