import socket
import sys
from pathlib import Path

import pytest

from hetinfer.errors import InputError
from hetinfer.measurement.processes import kept
from hetinfer.measurement.server import (
    ServerError,
    ServerSpec,
    attention_backend,
    await_health,
    cache_labels,
    cause,
    check_interpreter,
    check_model,
    connect,
    free_port,
    server_command,
    serving,
)

METRICS = """# HELP vllm:cache_config_info Information
vllm:num_requests_running{engine="0"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="8192"} 1.0
"""


def test_the_cache_configuration_is_read_from_the_metrics():
    labels = cache_labels(METRICS)
    assert tuple(
        labels[name] for name in ("block_size", "enable_prefix_caching", "num_gpu_blocks")
    ) == ("16", "True", "8192")
    assert cache_labels("") == {}


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("INFO [cuda.py:1] Using Flash Attention backend on V1 engine.", "Flash Attention"),
        ("INFO Using FLASH_ATTN attention backend out of potential", "FLASH_ATTN"),
        ("INFO Using FlashInfer backend.", "FlashInfer"),
        ("nothing", None),
    ],
)
def test_the_attention_backend_is_read_from_the_log(line, backend):
    assert backend == attention_backend(line)


def test_the_command_line_starts_the_module_with_the_flags():
    spec = ServerSpec(Path("py"), "./model", "dummy/llama-256x4", ("--enforce-eager",))
    command = server_command(spec, 8123)
    assert command[:3] == ["py", "-m", "vllm.entrypoints.openai.api_server"]
    assert command[-1] == "--enforce-eager"
    assert command[command.index("--port") + 1] == "8123"


def test_a_port_in_use_is_refused_and_a_free_one_is_found():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="port in use"):
            free_port(taken.getsockname()[1])
    assert free_port(0) > 0


def test_an_interpreter_without_vllm_is_refused(tmp_path):
    with pytest.raises(InputError, match="vLLM is not installed: got no interpreter"):
        check_interpreter(tmp_path / "bin" / "python")
    with pytest.raises(InputError, match="vLLM is not installed"):
        check_interpreter(Path(sys.executable))


def test_a_model_folder_that_is_missing_is_refused_and_a_hub_name_passes(tmp_path):
    with pytest.raises(InputError, match="model folder missing"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_model(str(tmp_path))
    check_model("meta-llama/Meta-Llama-3-8B-Instruct")


def test_an_endpoint_that_does_not_answer_is_refused():
    with pytest.raises(InputError, match="no endpoint"):
        connect(f"http://127.0.0.1:{free_port(0)}")


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ("print('no such flag'); raise SystemExit(2)", "server-died-at-start", "exit code 2"),
        ("raise RuntimeError('CUDA out of memory.')", "out-of-memory", "exit code 1"),
        ("import os; os.kill(os.getpid(), 9)", "server-died-at-start", "killed"),
    ],
)
def test_a_server_that_dies_at_its_start_fails_with_the_end_of_its_log(
    tmp_path, script, reason, detail
):
    log = tmp_path / "log"
    with (
        pytest.raises(ServerError, match=detail) as caught,
        kept([sys.executable, "-c", script], log=log) as program,
    ):
        await_health(f"http://127.0.0.1:{free_port(0)}", program, 30)
    assert reason == caught.value.reason
    assert caught.value.log_end == log.read_text().strip()


def test_the_cause_of_a_failure_is_the_first_error_of_the_log():
    log = (
        "(APIServer pid=1) WARNING limit exceeds, like `OSError: [Errno 24]`\n"
        "(Worker pid=3) ERROR 11-30 [exec.py:63] ValueError: Available memory is less than asked\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert cause(log) == "ValueError: Available memory is less than asked"
    assert cause("all is well") == ""


def test_a_server_that_stays_silent_fails_when_time_is_up(tmp_path):
    with (
        pytest.raises(ServerError, match="server-silent"),
        kept(["sleep", "600"], log=tmp_path / "log") as program,
    ):
        await_health(f"http://127.0.0.1:{free_port(0)}", program, 0.1)


def test_nothing_starts_without_vllm(tmp_path):
    spec = ServerSpec(tmp_path / "python", "model", "model")
    with pytest.raises(InputError), serving(spec, log=tmp_path / "log"):
        raise AssertionError
    assert not (tmp_path / "log").exists()
