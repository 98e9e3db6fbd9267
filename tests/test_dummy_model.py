import json

import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.dummy_model import describe_dummy, is_dummy, write_dummy_model


def test_the_name_says_the_sizes():
    model = describe_dummy("dummy/llama-256x4")
    assert (
        model.hidden,
        model.layers,
        model.heads,
        model.kv_heads,
        model.head_dim,
    ) == (256, 4, 4, 1, 64)
    per_layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 4 * 256 * 256
    assert pytest.approx((32768 * 256 + 4 * per_layer) / 1e9) == model.parameters_b
    assert model.kv_bytes_per_token == 2 * 2 * 4 * 64


@pytest.mark.parametrize("name", ["dummy/llama", "dummy/llama-100x4", "dummy/opt-256x4", "dummy/"])
def test_another_form_of_name_is_refused(name):
    with pytest.raises(InputError, match="dummy model"):
        describe_dummy(name)


def test_only_the_prefix_makes_a_dummy():
    assert is_dummy("dummy/llama-256x4")
    assert not is_dummy("meta-llama/Meta-Llama-3-8B-Instruct")


def test_the_folder_holds_a_model_and_a_tokenizer_of_its_vocabulary(tmp_path):
    folder = write_dummy_model("dummy/llama-128x2", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (128, 2)
    assert config["vocab_size"] == len(words) == len(set(words.values()))
    assert not any(" " in word for word in words)
