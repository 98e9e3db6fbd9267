import math

import pytest

from hetinfer.errors import InputError
from hetinfer.hardware import (
    check_price,
    configuration_label,
    device_name,
    find_gpu,
    find_model,
    kv_capacity_tokens,
    load_gpus,
    load_models,
    load_price_scenarios,
    load_prices,
    load_table,
    short_name,
)
from hetinfer.runs import load_recorded


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("h100-pcie", "h100-pcie"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("nvidia h100 80gb hbm3", "h100-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(name, gpu):
    assert gpu == find_gpu(name).gpu


@pytest.mark.parametrize("name", ["", "4090", "Voodoo 2", "H100"])
def test_an_unknown_gpu_lists_the_known_and_how_to_add_one(name):
    with pytest.raises(InputError, match=r"h100-pcie, .*rtx-4090.*; add a row"):
        find_gpu(name)


def test_no_name_means_two_gpus():
    names = [n for g in load_gpus().values() for n in {g.gpu, g.name, *g.aliases}]
    assert all(gpu == find_gpu(gpu).gpu for gpu in load_gpus())
    assert len(names) == len(set(names))


def test_an_h100_pcie_is_limited_to_350_w_and_a_4090_to_450_w():
    assert (350, 450) == (find_gpu("h100-pcie").tdp_w, find_gpu("rtx-4090").tdp_w)


def test_every_gpu_has_bandwidth_memory_power_and_a_source():
    for gpu in load_gpus().values():
        assert min(gpu.tdp_w, gpu.memory_gb, gpu.memory_bandwidth_gb_per_s) > 0
        assert gpu.source


@pytest.mark.parametrize("name", ["microsoft/phi-4", "phi-4", "PHI-4"])
def test_a_model_is_found_by_its_full_or_short_name(name):
    assert "microsoft/phi-4" == find_model(name).model


def test_an_unknown_model_lists_the_known():
    with pytest.raises(InputError, match=r"unknown model.*phi-4"):
        find_model("gpt-2")


def test_every_recorded_model_and_gpu_is_known():
    runs = load_recorded()
    assert set(runs["model"]) <= set(load_models())
    assert set(runs["gpu"]) <= set(load_gpus())


def test_kv_bytes_per_token_are_two_for_each_layer_head_and_dimension():
    for model in load_models().values():
        values = 2 * model.layers * model.kv_heads * model.head_dim
        assert model.kv_bytes_per_token == 2 * values, model.model


def test_short_name_is_what_stands_behind_the_slash():
    assert "phi-4" == short_name("microsoft/phi-4") == short_name("phi-4")


def test_configuration_labels():
    assert "2x 4090" == configuration_label("rtx-4090", 2)
    assert "1x H100" == configuration_label("h100-pcie", 1)
    assert "1x l40s" == configuration_label("l40s", 1)


def test_kv_cache_takes_what_the_weights_leave():
    model = find_model("DeepSeek-R1-Distill-Qwen-1.5B")
    free = 0.9 * 24e9 - model.parameters_b * 1e9 * 2
    tokens = kv_capacity_tokens(model.model, "rtx-4090", 1)
    assert math.isclose(free / 28672, tokens)


def test_weights_that_do_not_fit_leave_no_kv_cache():
    assert 0.0 == kv_capacity_tokens("Meta-Llama-3-70B-Instruct", "rtx-4090", 1)


def test_the_study_s_prices():
    prices = load_prices("study-2025")
    assert (2.0, 0.25) == (prices["h100-pcie"], prices["rtx-4090"])


def test_an_unknown_scenario_lists_the_known():
    with pytest.raises(InputError, match=r"unknown price scenario.*study-2025"):
        load_prices("free")


def test_the_study_s_scenario_comes_first():
    assert "study-2025" == next(iter(load_price_scenarios()))


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_a_price_that_is_not_positive_is_refused(price):
    with pytest.raises(InputError, match="price not positive"):
        check_price(price, where="a test")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "table unreadable"),
        (b"a,b\n", "table empty"),
        (b"a,b\n1,2,3,4\n1,2,3,4,5,6\n", "table unreadable"),
        (b"a\n\xff\xfe\n", "table unreadable"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, what):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=what):
        load_table(path)


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(InputError, match=r"table missing.*t\.csv"):
        load_table(tmp_path / "t.csv")


def test_text_columns_stay_as_they_stand(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("version,note,number\n0.10,NA,\n0.2,,1\n")
    table = load_table(path, text=["version", "note", "absent"])
    assert ["0.10", "0.2"] == table["version"].tolist()
    assert ["NA", ""] == table["note"].tolist()
    assert math.isnan(table["number"].iloc[0])


def test_a_device_is_a_card_by_any_of_its_names_or_the_cpu():
    assert device_name("NVIDIA GeForce RTX 4090") == "rtx-4090"
    assert device_name("CPU") == "cpu"
    with pytest.raises(InputError, match="unknown GPU"):
        device_name("cpus")
