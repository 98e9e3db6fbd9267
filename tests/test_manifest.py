import json

from hetinfer.measurement.manifest import package_versions, proc_field, take_manifest
from hetinfer.paths import root_dir, sha256_of
from nvml_stand_in import build_stand_in, run_with

SCRIPT = """
import dataclasses, json
from hetinfer.measurement.manifest import take_manifest
found = take_manifest(None, "", "")
print(json.dumps(dataclasses.asdict(found)))
"""


def test_the_manifest_names_machine_software_and_inputs(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}")
    manifest = take_manifest(None, "abc", str(prompts))
    assert manifest.cpu_cores >= 1
    assert manifest.memory_gb > 0.1
    assert manifest.campaign_sha256 == "abc"
    assert sha256_of(prompts) == manifest.dataset_sha256
    assert len(manifest.git_commit) in (0, 40)


def test_without_a_driver_no_card_is_listed_and_the_reason_is():
    manifest = take_manifest(None, "", "")
    assert bool(manifest.gpus) != bool(manifest.gpu_reason)


def test_cards_limits_links_and_peers_are_listed(tmp_path):
    manifest = run_with(build_stand_in(tmp_path), SCRIPT)
    assert (
        manifest["driver"],
        manifest["cuda"],
        manifest["gpu_reason"],
    ) == ("575.51", "12.9", "")
    assert len(manifest["gpus"]) == 2
    card = manifest["gpus"][0]
    assert card["name"] == "NVIDIA GeForce RTX 4090"
    assert (card["power_limit_w"], card["pcie_generation"], card["pcie_width"]) == (450.0, 4, 16)
    assert card["memory_gb"] is None, "the stand-in lacks that function"
    assert manifest["peer_access"] == ["0-1:no"]


def test_a_manifest_tells_nothing_of_who_and_where():
    text = json.dumps(take_manifest(None, "", "").__dict__)
    assert str(root_dir()) not in text


def test_versions_are_read_from_an_environments_files(tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("vllm-0.10.0.dist-info", "torch-2.7.0+cu126.dist-info", "six-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
    found = package_versions(tmp_path / "bin" / "python")
    assert found == ("vllm 0.10.0", "torch 2.7.0+cu126")


def test_a_field_of_proc_is_its_first_value(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name : A CPU @ 2 GHz\nmodel name : B\n")
    assert proc_field(path, "model name") == "A CPU @ 2 GHz"
    assert proc_field(path, "nothing") == ""
    assert proc_field(tmp_path / "none", "model name") == ""
