"""A model with random weights, made on the spot: real vLLM, no download, no licence.

A name such as `dummy/llama-1024x12` says the architecture, the hidden size and the layers. vLLM
fills the weights itself (`--load-format dummy`). The tokenizer has one token a word, so that every
prompt has exactly the tokens asked for and every generated token is one chunk of the stream.
"""

import json
import re
from pathlib import Path

from hetinfer.errors import InputError
from hetinfer.hardware import LanguageModel
from hetinfer.paths import write_atomically

PREFIX = "dummy/"
HEAD_DIM = 64
MLP_RATIO = 4
QUERY_HEADS_PER_KV_HEAD = 4
VOCABULARY = 32768  # so many that two random prompts hardly ever begin alike
MAX_TOKENS = 4096
END = "<end>"
WORD = "w00001"  # one of its tokens
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # adds no token


def is_dummy(model: str) -> bool:
    """Whether the name means a model with random weights."""
    return model.startswith(PREFIX)


def describe_dummy(model: str) -> LanguageModel:
    """The sizes behind a dummy model's name; InputError for a name of another form.

    Parameters: V h for the tied embedding, and for each layer 2 h^2 + 2 h k of attention and
    3 r h^2 of MLP, with k the width of the KV heads and r the MLP ratio.
    """
    match = re.fullmatch(r"dummy/llama-(\d+)x(\d+)", model)
    hidden, layers = (int(size) for size in match.groups()) if match else (0, 0)
    if not layers or not hidden or hidden % HEAD_DIM:
        raise InputError(
            "dummy model",
            got=repr(model),
            expected=f"dummy/llama-HIDDENxLAYERS, HIDDEN a multiple of {HEAD_DIM}",
            where="the campaign's models",
            do="name it so, such as dummy/llama-256x4",
        )
    heads = hidden // HEAD_DIM
    kv_heads = max(1, heads // QUERY_HEADS_PER_KV_HEAD)
    kv_width = kv_heads * HEAD_DIM
    layer = 2 * hidden**2 + 2 * hidden * kv_width + 3 * MLP_RATIO * hidden**2
    parameters_b = (VOCABULARY * hidden + layers * layer) / 1e9
    return LanguageModel(
        model=model,
        parameters_b=parameters_b,
        parameters_read_per_step_b=parameters_b,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        vocab=VOCABULARY,
        weight_bytes_per_parameter=2,
        kv_bytes_per_token=2 * 2 * layers * kv_width,
        source="made here, random weights",
    )


def write_dummy_model(model: str, folder: Path) -> Path:
    """Write configuration and tokenizer of a dummy model to `folder`, and return the folder."""
    sizes = describe_dummy(model)
    files = {
        "config.json": _config(sizes),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": MAX_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": 0},
    }
    for name, content in files.items():
        write_atomically(folder / name, json.dumps(content))
    return folder


def _config(sizes: LanguageModel) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes.hidden,
        "intermediate_size": MLP_RATIO * sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def _tokenizer() -> dict[str, object]:
    words = [END, *(f"w{number:05d}" for number in range(1, VOCABULARY))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": END,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": words[1],
        },
    }
