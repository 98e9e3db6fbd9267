import numpy as np
import pandas as pd
import pytest

from hetinfer.errors import InputError
from hetinfer.estimates import (
    cost_estimates,
    estimates_text,
    interval_texts,
    quote_rows,
    share_estimates,
)
from hetinfer.hardware import load_prices
from hetinfer.runs import load_recorded

QWEN_14B = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
PHI_4 = "microsoft/phi-4"


@pytest.fixture(scope="module")
def runs():
    return load_recorded()


def costs(runs, model=QWEN_14B, gpu="rtx-4090", gpu_count=4, rate=16.0):
    return cost_estimates(
        runs, model, load_prices(), gpu=gpu, gpu_count=gpu_count, rate_requests_per_s=rate
    )


def test_measured_share_comes_first_with_the_noise_of_two_runs(runs):
    table = share_estimates(runs, QWEN_14B, gpu_count=4, rate_requests_per_s=16.0)
    recorded = table.iloc[0]
    assert recorded["kind"] == "recorded"
    assert 0.005 < recorded["high"] / recorded["estimate"] - 1 < 0.012


def test_every_estimate_lies_in_its_interval_and_names_its_evidence(runs):
    table = share_estimates(runs, QWEN_14B, gpu_count=2, rate_requests_per_s=11.0)
    assert (table["low"] < table["estimate"]).all()
    assert (table["estimate"] < table["high"]).all()
    assert (table["evidence"] == "recorded").all()


def test_band_of_five_models_claims_five_sixths(runs):
    table = share_estimates(runs, QWEN_14B, gpu_count=2, rate_requests_per_s=11.0)
    bands = table[table["kind"].str.endswith("new model")]
    assert bands["confidence"].tolist() == [5 / 6, 5 / 6]


def test_eight_cards_have_no_interval(runs):
    table = share_estimates(runs, PHI_4, gpu_count=8, rate_requests_per_s=11.0)
    assert table["low"].isna().all()


def test_measured_cost_is_recorded_and_the_one_between_rates_interpolated(runs):
    assert costs(runs)["kind"].tolist() == ["recorded", "drain model"]
    assert costs(runs, rate=11.0)["kind"].tolist() == ["interpolated", "drain model"]
    assert costs(runs, model=PHI_4)["kind"].tolist() == ["drain model"]


def test_cost_of_four_4090s_at_sixteen_per_second_is_the_studys(runs):
    assert np.isclose(0.139, costs(runs)["estimate"].iloc[0], atol=5e-4)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"gpu_count": 0}, "GPU count"),
        ({"gpu_count": 9}, "GPU count"),
        ({"rate": 0.0}, "rate outside"),
        ({"rate": float("nan")}, "rate outside"),
        ({"gpu": "a100-sxm"}, "GPU without runs"),
        ({"model": "google/gemma-3"}, "no runs of this model"),
    ],
)
def test_cost_of_what_was_never_near_a_run_is_an_error(runs, changed, what):
    with pytest.raises(InputError, match=what):
        costs(runs, **changed)


@pytest.mark.parametrize(
    ("count", "rate", "what"), [(0, 8.0, "GPU count"), (16, 8.0, "GPU count"), (2, 64.0, "rate")]
)
def test_share_outside_the_runs_is_an_error(runs, count, rate, what):
    with pytest.raises(InputError, match=what):
        share_estimates(runs, QWEN_14B, gpu_count=count, rate_requests_per_s=rate)


def test_quoted_rows_are_named_from_the_row_and_keep_their_interval():
    table = pd.DataFrame(
        {
            "gpu_count": [4, 8],
            "share": [0.717, 0.676],
            "low": [0.592, np.nan],
            "high": [0.842, np.nan],
        }
    )
    three, one = quote_rows(table, "share", name="share_{gpu_count}x4090", unit="%", chapter="02")
    assert (three.name, three.text, one.name, one.text) == (
        "share_4x4090",
        "72",
        "share_8x4090",
        "68",
    )
    assert np.isclose(59.2, three.low)
    assert one.low is None
    assert interval_texts([three, one]) == {"share_4x4090_interval": "59 to 84"}


def test_estimates_as_text_have_a_line_each(runs):
    text = estimates_text(costs(runs), decimals=3, unit="USD")
    assert text.splitlines()[0].startswith("recorded")
    assert "0.139 (95 %: 0.138 to 0.140) USD; evidence: recorded" in text
