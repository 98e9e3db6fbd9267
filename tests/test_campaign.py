import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.campaign import (
    all_cells,
    all_series,
    campaign_file,
    find_cell,
    load_campaign,
)
from hetinfer.paths import data_dir

SHIPPED = ["cpu-demo", "cpu-prefix-cache", "improved", "paper"]
SMALL = """
title = "Small"
rates_requests_per_s = [4, 2]
prompts = 10
seeds = [42, 43]
[[configurations]]
models = ["dummy/llama-256x4"]
gpu = "cpu"
counts = [1]
[dataset]
name = "random"
input_tokens = 20
output_tokens = 4
"""


def load(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_campaign(str(path))


def test_the_shipped_campaigns_are_these_and_load():
    assert sorted(path.stem for path in data_dir("campaigns").glob("*.toml")) == SHIPPED
    for name in SHIPPED:
        assert load_campaign(name).name == name


def test_every_key_of_a_campaign_is_explained():
    explained = (data_dir("campaigns") / "README.md").read_text()
    for key in load_campaign("paper").__dataclass_fields__:
        assert f"`{key}`" in explained


def test_a_series_is_one_server_with_every_rate_in_turn(tmp_path):
    series = all_series(load(tmp_path, SMALL))
    assert [s.name for s in series] == [
        "llama-256x4_1xcpu_default_r1",
        "llama-256x4_1xcpu_default_r2",
    ]
    assert [cell.rate_requests_per_s for cell in series[0].cells] == [4, 2]
    assert [cell.seed for cell in series[0].cells] == [42, 42]
    assert [cell.position for cell in series[0].cells] == [0, 1]


def test_cells_have_names_of_their_own():
    for name in SHIPPED:
        cells = all_cells(load_campaign(name))
        assert len({cell.name for cell in cells}) == len(cells)


def test_the_paper_campaign_is_the_studys_configurations_and_rates():
    cells = all_cells(load_campaign("paper"))
    assert len(cells) == 24 * 5
    assert [cell.rate_requests_per_s for cell in cells[:5]] == [32, 16, 8, 4, 1]
    assert {42} == {cell.seed for cell in cells}
    assert {200} == {cell.prompts for cell in cells}


def test_fresh_prompts_give_every_run_a_seed_of_its_own():
    cells = all_cells(load_campaign("cpu-prefix-cache"))
    fresh = [cell.seed for cell in cells if cell.variant.fresh_prompts]
    assert len(set(fresh)) == len(fresh) == 9
    assert {42, 43, 44} == {cell.seed for cell in cells if not cell.variant.fresh_prompts}


def test_a_random_order_is_fixed_by_the_seed_and_differs_between_replicates():
    orders = {
        tuple(cell.rate_requests_per_s for cell in series.cells)
        for series in all_series(load_campaign("improved"))
    }
    assert 1 < len(orders) <= 5
    assert all(sorted(order) == [1, 2, 4, 8, 16, 32] for order in orders)


def test_a_window_sends_its_length_times_the_rate():
    cells = all_cells(load_campaign("improved"))
    assert all(cell.prompts == 600 * cell.rate_requests_per_s for cell in cells)


def test_a_cell_is_found_by_name_and_the_first_without(tmp_path):
    campaign = load(tmp_path, SMALL)
    assert find_cell(campaign, "").name == "llama-256x4_1xcpu_default_4qps_r1"
    assert find_cell(campaign, "llama-256x4_1xcpu_default_2qps_r2").seed == 43
    with pytest.raises(InputError, match="unknown cell"):
        find_cell(campaign, "llama")


def test_an_unknown_campaign_names_the_known_ones():
    with pytest.raises(InputError, match="cpu-demo, cpu-prefix-cache, improved, paper"):
        load_campaign("cpu-demonstration")
    assert campaign_file("paper") == data_dir("campaigns") / "paper.toml"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("prompts = 10", "prompt = 10", "unknown key: got prompt"),
        ("prompts = 10", "", "prompts and window_s"),
        ("prompts = 10", "prompts = 10\nwindow_s = 5", "prompts and window_s"),
        ("prompts = 10", 'prompts = "10"', "prompts: got '10'"),
        ("prompts = 10", "prompts = true", "prompts: got True"),
        ("[4, 2]", "[4, 4]", "rates_requests_per_s"),
        ("[4, 2]", "[]", "rates_requests_per_s"),
        ("[4, 2]", "[4, 0]", "rate: got 0"),
        ("[4, 2]", '["4"]', "rates_requests_per_s"),
        ("seeds = [42, 43]", "seeds = [42.5]", "seeds"),
        ("seeds = [42, 43]", "", "key missing: got none, expected seeds"),
        ("seeds = [42, 43]", "seeds = [42, 43", "TOML"),
        ("seeds = [42, 43]", 'seeds = [42]\nrate_order = "falling"', "rate_order"),
        ("counts = [1]", "counts = [0]", "counts"),
        ("counts = [1]", "counts = 1", "configurations"),
        ('gpu = "cpu"', 'gpu = "h1000"', "unknown GPU"),
        ('models = ["dummy/llama-256x4"]', 'models = ["dummy/llama"]', "dummy model"),
        ('models = ["dummy/llama-256x4"]', 'models = ["gpt-5"]', "unknown model"),
        ('name = "random"', "", "key missing: got none, expected name"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(tmp_path, old, new, what):
    assert old in SMALL
    with pytest.raises(InputError) as caught:
        load(tmp_path, SMALL.replace(old, new))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
