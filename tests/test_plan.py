from dataclasses import replace

import pytest

from hetinfer.hardware import load_prices
from hetinfer.measurement.campaign import all_cells, load_campaign
from hetinfer.measurement.plan import duration_text, obstacle, plan_campaign, plan_text


def cell_on(model, gpu, count):
    return replace(all_cells(load_campaign("paper"))[0], model=model, gpu=gpu, gpu_count=count)


def test_every_configuration_of_the_study_fits():
    campaign = load_campaign("paper")
    assert {""} == {obstacle(campaign, cell) for cell in all_cells(campaign)}


def test_a_model_larger_than_its_cards_does_not_fit_and_the_reason_has_the_sizes():
    reason = obstacle(load_campaign("paper"), cell_on("microsoft/phi-4", "rtx-4090", 1))
    assert "29.3 GB" in reason
    assert "90% of 1 x 24 GB" in reason


def test_heads_that_do_not_divide_over_the_cards_are_named():
    model = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    reason = obstacle(load_campaign("paper"), cell_on(model, "rtx-4090", 8))
    assert reason == "12 attention heads do not divide over 8 cards"


def test_time_energy_and_rent_follow_from_the_schedule_and_the_record():
    plans = plan_campaign(load_campaign("paper"), {"h100-pcie": 2.0})
    last = next(p for p in plans if "Qwen-1.5B_1xh100-pcie_default_1qps" in p.cell)
    assert last.duration_s == 200.0
    assert pytest.approx(350 * 200 / 3.6e6) == last.energy_kwh
    assert pytest.approx(2.0 * 200 / 3600) == last.cost_usd
    assert last.time_from == "recorded"


def test_a_saturated_rate_takes_as_long_as_the_recorded_throughput_says():
    plans = plan_campaign(load_campaign("paper"), {})
    first = next(p for p in plans if "Qwen-14B_2xrtx-4090_default_32qps" in p.cell)
    assert first.duration_s > 120 + 200 / 32
    assert first.cost_usd is None


def test_a_cpu_has_neither_energy_nor_rent():
    plans = plan_campaign(load_campaign("cpu-demo"), load_prices())
    assert {(None, None, "")} == {(p.energy_kwh, p.cost_usd, p.obstacle) for p in plans}
    assert [p.duration_s for p in plans] == [40 + 3.0, 6.0, 12.0] * 2


def test_the_text_has_a_line_a_cell_the_differences_and_the_sums():
    campaign = load_campaign("improved")
    lines = plan_text(campaign, plan_campaign(campaign, load_prices())).splitlines()
    assert len(all_cells(campaign)) + 3 == len(lines)
    assert sum("does not fit: weights 29.5 GB" in line for line in lines) == 30
    assert lines[-1].startswith("570 of 600 cells can run, ")
    paper = load_campaign("paper")
    assert "differs from the study: arrivals" in plan_text(paper, plan_campaign(paper, {}))


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (200, "3 min 20 s"), (3900, "1 h 05 min"), (0, "0 s")]
)
def test_durations_read_well(seconds, text):
    assert text == duration_text(seconds)
