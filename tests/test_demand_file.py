import re

import pytest

from hetinfer.errors import InputError
from hetinfer.fleet.demand_file import load_demand
from hetinfer.paths import root_dir
from hetinfer.simulation.fitted import Calibration

NO_FITS = Calibration(0, {}, ())
EXAMPLE = root_dir() / "notebooks" / "demand.toml"


def load_changed(tmp_path, old, new):
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "demand.toml"
    path.write_text(text.replace(old, new))
    return load_demand(path, NO_FITS)


def test_the_example_is_read():
    file = load_demand(EXAMPLE, NO_FITS)
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-8B" == file.model
    assert ["chat", "agents", "batch"] == [service.name for service in file.demand.classes]
    assert (3, 24) == file.demand.requests_per_s.shape
    assert 12.0 == file.demand.requests_per_s[2, 0]
    assert ["1x H100", "1x 4090"] == [offer.name for offer in file.offers]
    assert [20, 100] == [offer.most for offer in file.offers]
    assert ("cost", "slo-aware") == (file.aim.objective, file.policy)


def test_one_rate_is_every_hours_rate_and_prices_may_be_ones_own(tmp_path):
    file = load_changed(tmp_path, "daily_peak_requests_per_s = 30.0", "requests_per_s = 7")
    assert {7.0} == set(file.demand.requests_per_s[0])
    file = load_changed(tmp_path, "# [usd_per_gpu_h]", '[usd_per_gpu_h]\n"rtx-4090" = 0.3 #')
    assert 0.3 == file.offers[1].usd_per_h


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ttft_target_s = 0.5       #", "#", "class without target.*class chat"),
        ("ttft_target_s = 0.5       #", "ttft_target_s = -1 #", "class chat: ttft_target_s"),
        (
            "ttft_target_s = 0.5       #",
            'ttft_target_s = "soon" #',
            "'soon', expected a finite number",
        ),
        ("output_tokens = 208\nttft_target_s = 0.5", "ttft_target_s = 0.5", "no output_tokens"),
        ('name = "chat"', 'name = "chat"\nttft = 3', "unknown ttft"),
        ("daily_peak_requests_per_s = 30.0", "", "rates: got neither"),
        ("daily_peak_requests_per_s = 30.0", "requests_per_s = [1, 2]", "or 24, one an hour"),
        ("daily_peak_requests_per_s = 30.0", "requests_per_s = -3", "one number of 0 or more"),
        ('objective = "cost"', 'objective = "speed"', "objective: got 'speed'"),
        ('policy = "slo-aware"', 'policy = "best"', "unknown policy"),
        ('prices = "study-2025"', 'prices = "now"', "unknown price scenario"),
        ('region = "EU27"', 'region = "Atlantis"', "Atlantis"),
        ('gpu = "rtx-4090"', 'gpu = "gtx-1"', "unknown GPU"),
        ("available_frac = 1.0", "available_frac = 0", "available_frac: got 0"),
        ("# [usd_per_gpu_h]", '[usd_per_gpu_h]\n"rtx-4090" = -0.3 #', "price not positive"),
        ('model = "DeepSeek-R1-Distill-Llama-8B"', 'model = "9"', "unknown model"),
        ('model = "DeepSeek-R1-Distill-Llama-8B"', "model = ", "demand file unreadable"),
        ('model = "DeepSeek-R1-Distill-Llama-8B"', "model = 8", "model: got 8, expected a text"),
        ('region = "EU27"', "region = 27", "region: got 27"),
        ('policy = "slo-aware"', "policy = true", "policy: got True"),
        ('objective = "cost"', "objective = 1", "objective: got 1"),
        ('prices = "study-2025"', "prices = 2025", "prices: got 2025"),
        ("usd_per_kg = 0.0", 'usd_per_kg = "x"', "usd_per_kg: got 'x'"),
        ("usd_per_kg = 0.0", "usd_per_kg = -1", "usd_per_kg: got -1, expected 0 or more"),
        ("# [usd_per_gpu_h]", "usd_per_gpu_h = 3 #", "usd_per_gpu_h: got 3, expected a table"),
        ("prompt_tokens = 208 ", "prompt_tokens = 0.5 ", "prompt_tokens: got 0.5, expected 1"),
        ("prompt_tokens = 208 ", "prompt_tokens = nan ", "prompt_tokens: got nan"),
        ("tpot_target_s = 0.06      #", "tpot_target_s = inf #", "tpot_target_s: got inf"),
        ("daily_peak_requests_per_s = 3.0", "requests_per_s = true", "requests_per_s: got True"),
        ("daily_peak_requests_per_s = 3.0", "requests_per_s = [[]]", r"requests_per_s: got \[\]"),
        ('name = "agents"', "name = 3", "name: got 3, expected a text"),
        ("gpus = 1\nmost = 20", "gpus = 1.5\nmost = 20", "gpus: got 1.5, expected a whole number"),
        ("most = 20 ", "most = -1 ", "most: got -1"),
        ("most = 20 ", "most = 2.5 ", "most: got 2.5"),
        ("available_frac = 1.0", 'available_frac = "half"', "available_frac: got 'half'"),
        ('gpu = "rtx-4090"', "gpu = 4090", "gpu: got 4090"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, old, new, said):
    with pytest.raises(InputError, match=said):
        load_changed(tmp_path, old, new)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="no demand file"):
        load_demand(tmp_path / "none.toml", NO_FITS)


@pytest.mark.parametrize("name", ["class", "configuration"])
@pytest.mark.parametrize("value", ["3", "[]", "[3]", '{name = "chat"}'])
def test_a_table_of_another_kind_is_named(tmp_path, name, value):
    head, *tables = re.split(r"(?m)^(?=\[\[)", EXAMPLE.read_text())
    kept = [table for table in tables if not table.startswith(f"[[{name}]]")]
    path = tmp_path / "demand.toml"
    path.write_text("".join([f"{name} = {value}\n", head, *kept]))
    with pytest.raises(InputError, match=rf"{name}: got .*, expected one table \[\[{name}\]\]"):
        load_demand(path, NO_FITS)
