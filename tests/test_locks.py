"""Locks of the environments that measuring needs: what they hold, and that no host is in them."""

import re
import tomllib

import pytest

from hetinfer.paths import root_dir

ROOT = root_dir()
LOCKS = [f"requirements-{name}.lock" for name in ("cluster", "gateway", "vllm-cpu", "vllm-gpu")]


def pins(name):
    """Versions by package, of lines that can apply on some machine."""
    lines = (ROOT / name).read_text().splitlines()
    kept = [line for line in lines if "sys_platform == 'never'" not in line]
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", "\n".join(kept), re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_every_package_and_names_no_host(name):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "--index" not in text
    loose = [line for line in text.splitlines() if re.match(r"[a-z]", line) and "==" not in line]
    assert loose == []


def test_both_vllm_locks_hold_one_release_of_vllm():
    cpu, gpu = (pins(f"requirements-vllm-{kind}.lock") for kind in ("cpu", "gpu"))
    assert cpu["vllm-cpu"] == gpu["vllm"]
    assert cpu["torch"].endswith("+cpu")
    assert "+" not in gpu["torch"]


def test_the_cpu_lock_leaves_out_what_does_not_load_beside_its_torch():
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pins("requirements-vllm-cpu.lock"))


def test_locks_that_share_the_base_environment_agree_with_it():
    base, cluster = pins("requirements.lock"), pins("requirements-cluster.lock")
    assert {name: base[name] for name in base.keys() & cluster} == {
        name: cluster[name] for name in base.keys() & cluster
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras["optional-dependencies"]["cluster"] == ["ray>=2.60"]
    assert cluster["ray"].startswith("2.60")


def test_locks_with_hashes_have_one_for_every_package():
    for name in (
        "requirements-cluster.lock",
        "requirements-gateway.lock",
        "requirements-vllm-gpu.lock",
    ):
        blocks = re.split(r"\n(?=[a-z])", (ROOT / name).read_text().strip())
        assert [block for block in blocks if "--hash=sha256:" not in block] == []
