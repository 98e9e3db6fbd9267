"""What the demo's clients send, and how their requests are found on the servers."""

import json
from pathlib import Path

import numpy as np
import pytest

from hetinfer.errors import InputError
from hetinfer.fleet.gateway import Backend, Gateway, Lane
from hetinfer.measurement.gateway_load import (
    CHAT_FLAGS,
    ClassLoad,
    Clients,
    Served,
    client_load,
    landed,
    running_gateway,
    sent_requests,
)

CLIENTS = Clients(Path("python"), Path("tokenizer"), "model", 7)


def test_classes_are_told_apart_by_the_lengths_of_their_prompts():
    """3 of 64 tokens and 2 of 192 are 576 tokens."""
    assert (3, 2) == landed(Served(5, 576), (64, 192))
    assert (0, 0) == landed(Served(0, 0), (64, 192))
    assert (4, 0) == landed(Served(10, 1000).since(Served(6, 744)), (64, 192))


@pytest.mark.parametrize("tokens", [577, 200, 5 * 193])
def test_requests_of_other_lengths_are_named(tokens):
    with pytest.raises(InputError, match="requests of other lengths"):
        landed(Served(5, tokens), (64, 192))


def test_a_class_asks_by_name_or_by_tag():
    load = ClassLoad("batch", 192, 32, 10, 2.0)
    by_name, by_tag = (
        client_load(one, CLIENTS) for one in (load, ClassLoad(**{**vars(load), "by_tag": True}))
    )
    assert ("batch", CHAT_FLAGS) == (by_name.model, by_name.flags)
    assert "model" == by_tag.model
    assert ("--header", "x-litellm-tags=batch") == by_tag.flags[-2:]
    assert (192, 32) == (by_tag.dataset.input_tokens, by_tag.dataset.output_tokens)


def test_requests_that_failed_before_and_within_their_answer_are_told_apart(tmp_path):
    told = {
        "ttfts": [0.5, 0.0, 0.2],
        "itls": [[0.1, 0.2], [], [0.1]],
        "errors": ["", "Service Unavailable", "cut"],
        "start_times": [10.0, 10.5, 11.0],
        "generated_texts": ["w00001 w00002 w00003", "", "w00001 w00002"],
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(told))
    sent = sent_requests(path, "chat")
    assert ["chat"] * 3 == sent["class"].tolist()
    np.testing.assert_allclose([0.5, np.nan, 0.2], sent["ttft_s"])
    np.testing.assert_allclose([0.8, np.nan, np.nan], sent["e2el_s"])
    assert [3, 0, 2] == sent["tokens"].tolist()


def test_a_gateway_without_its_programs_says_what_to_do(tmp_path):
    gateway = Gateway("model", {"chat": (Lane(Backend("1x H100", "h100-pcie", 1, 1), None),)})
    with (
        pytest.raises(InputError, match="run make gateway"),
        running_gateway(gateway, tmp_path, tmp_path / "bin", {}),
    ):
        pass
