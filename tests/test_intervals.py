import math

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.intervals import replicate_noise
from hetinfer.runs import load_recorded


def test_replicate_noise_of_pairs_is_rms_log_ratio_over_root_two():
    runs = load_recorded().head(2)
    pair = runs.assign(
        model="m", rate_requests_per_s=1.0, replicate=[1, 2], duration_s=[1.0, math.exp(0.02)]
    )
    assert math.isclose(0.02 / math.sqrt(2), replicate_noise(pair, "duration_s"))


def test_study_repeats_its_throughput_within_half_a_per_cent():
    assert 0.002 < replicate_noise(load_recorded(), "throughput_tokens_per_s") < 0.005


def test_study_repeats_its_tpot_within_one_per_cent():
    assert 0.005 < replicate_noise(load_recorded(), "tpot_mean_s") < 0.01


def test_noise_without_replicates_is_an_error():
    with pytest.raises(InputError, match="no replicates"):
        replicate_noise(load_recorded().query("replicate == 3"), "duration_s")


def test_noise_of_a_zero_is_an_error():
    runs = load_recorded()
    with pytest.raises(InputError, match="above 0"):
        replicate_noise(runs.assign(duration_s=np.zeros(len(runs))), "duration_s")


def test_noise_of_an_unknown_column_is_an_error():
    with pytest.raises(InputError, match="unknown column"):
        replicate_noise(load_recorded(), "speed")
