"""Measured campaigns: runs joined with what their servers told."""

import pytest

from hetinfer.errors import InputError
from hetinfer.measured import (
    load_campaign,
    load_campaigns,
    summarise_energy,
    summarise_variants,
)


@pytest.fixture(scope="module")
def runs():
    return load_campaign("cpu-prefix-cache")


def test_every_cell_of_the_shipped_campaign_ran_once(runs):
    cells = runs.groupby(["variant", "rate_requests_per_s"]).size()
    assert len(cells) == 9
    assert set(cells) == {3}
    assert set(runs["evidence"]) == {"measured"}


def test_only_runs_after_the_first_with_the_same_prompts_hit_the_cache(runs):
    warm = (runs["variant"] == "cached") & (runs["rate_requests_per_s"] < 4)
    assert (runs.loc[warm, "hit_frac"] > 0.5).all()
    assert (runs.loc[~warm, "hit_frac"] < 0.02).all()  # two random prompts may begin alike


def test_a_warm_cache_halves_the_first_token(runs):
    table = summarise_variants(runs).set_index(["variant", "rate_requests_per_s"])
    for rate in (1.0, 2.0):
        cached = table.loc[("cached", rate), "ttft_p50_s"]
        assert cached < 0.7 * table.loc[("uncached", rate), "ttft_p50_s"]
        assert cached < 0.7 * table.loc[("fresh", rate), "ttft_p50_s"]


def test_energy_that_nobody_metered_is_empty_with_a_reason(runs):
    assert runs["energy_gpu_energy_j"].isna().all()
    assert set(runs["energy_gpu_reason"]) == {"no-driver"}
    (row,) = summarise_energy(runs).to_dict("records")
    assert (row["runs"], row["gpu_metered"], row["gpu_reason"]) == (27, 0, "no-driver")


def test_all_campaigns_are_one_frame_and_an_unknown_one_is_named(runs):
    assert len(load_campaigns()) >= len(runs)
    with pytest.raises(InputError, match="make measure CAMPAIGN=nothing"):
        load_campaign("nothing")
