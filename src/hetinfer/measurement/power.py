"""Power and energy while a run lasts: NVIDIA GPUs through NVML, CPU packages through RAPL.

What a machine cannot tell stays empty with a reason code; nothing is ever zero for want of a
reading. Times are on the clock of `time.perf_counter`, which vLLM's client uses for its requests.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

SAMPLE_INTERVAL_S = 0.5  # NVML's own power is a one-second mean on recent cards
POWERCAP = Path("/sys/class/powercap")
REASONS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no-driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no-driver",
    pynvml.NVML_ERROR_NO_PERMISSION: "no-permission",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver-library-mismatch",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "driver-too-old",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not-supported",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
}
# from NVML's milliwatts and millijoules; what a card lacks is asked for once
READINGS: dict[str, Callable[[Any], float]] = {
    "power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "energy_j": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
    "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
    "temperature_c": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    "power_limit_w": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
}


@dataclass(frozen=True)
class Sample:
    """One look at one device, `gpu0` or `cpu0`; `energy_j` counts up from a moment of its own.

    `throttle_reasons` is NVML's bit mask of why clocks are held down.
    """

    time_s: float
    device: str
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: float | None = None


@dataclass(frozen=True)
class PowerLog:
    """What sampling saw: samples in order of time, and why anything is missing.

    `gpus` and `cpus` are the devices a run should have. `reasons` maps `gpu`, `cpu`, a device, or
    `device.reading` to a code such as `no-driver`, `no-permission` or `not-supported`.
    """

    gpus: tuple[str, ...]
    cpus: tuple[str, ...]
    samples: list[Sample] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def sampling(
    gpus: Sequence[int], *, interval_s: float = SAMPLE_INTERVAL_S, powercap: Path = POWERCAP
) -> Iterator[PowerLog]:
    """Sample GPUs, by NVML index, and the CPU packages, in a thread, while the block lasts.

    The first sample is taken before the block begins and the last after it ends. Never raises for
    a machine that cannot tell: the log's reasons say why.
    """
    with opened_nvml() as nvml_reason:
        log = PowerLog(tuple(f"gpu{index}" for index in gpus), tuple(_packages(powercap)))
        readers = _gpu_readers(gpus, log, nvml_reason) + _cpu_readers(powercap, log)
        stop = threading.Event()
        thread = threading.Thread(target=_sample_until, args=(stop, readers, log, interval_s))
        _sample(readers, log)
        thread.start()
        try:
            yield log
        finally:
            stop.set()
            thread.join()
            _sample(readers, log)


@contextlib.contextmanager
def opened_nvml() -> Iterator[str]:
    """NVML initialised while the block lasts; gives the reason code why it could not be, or ''."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield reason_of(error)
        return
    try:
        yield ""
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(count: int) -> tuple[int, ...]:
    """NVML indices of the `count` GPUs that a server started now would use: CUDA's visible ones.

    `CUDA_VISIBLE_DEVICES` may hold indices (in PCI order, which the server is told to keep) or
    UUIDs; without it they are the first ones.
    """
    named = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    if not named:
        return tuple(range(count))
    with opened_nvml() as reason:
        if reason:
            return tuple(range(count))
        return tuple(_index_of(name.strip()) for name in named[:count])


def reason_of(error: pynvml.NVMLError) -> str:
    """The short code of an NVML error, such as `no-driver`; `nvml-error-N` for a rare one."""
    return REASONS.get(error.value, f"nvml-error-{error.value}")


@dataclass(frozen=True)
class _Reader:
    device: str
    read: Callable[[], dict[str, float | None]]


def _gpu_readers(gpus: Sequence[int], log: PowerLog, nvml_reason: str) -> list[_Reader]:
    if nvml_reason or not gpus:
        log.reasons["gpu"] = nvml_reason or "no-gpu-in-run"
        return []
    present = pynvml.nvmlDeviceGetCount()
    if not present:
        log.reasons["gpu"] = "no-gpu"
    readers = []
    for index in gpus:
        device = f"gpu{index}"
        if index >= present:
            log.reasons[device] = "no-gpu"
            continue
        try:
            readers.append(_gpu_reader(device, pynvml.nvmlDeviceGetHandleByIndex(index), log))
        except pynvml.NVMLError as error:
            log.reasons[device] = reason_of(error)
    return readers


def _gpu_reader(device: str, handle: Any, log: PowerLog) -> _Reader:
    def read() -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name, reading in READINGS.items():
            if f"{device}.{name}" in log.reasons or device in log.reasons:
                continue
            try:
                found[name] = reading(handle)
            except pynvml.NVMLError as error:
                lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
                log.reasons[device if lost else f"{device}.{name}"] = reason_of(error)
        return found

    return _Reader(device, read)


def _packages(powercap: Path) -> dict[str, Path]:
    """RAPL's package domains by device name; subdomains such as core and dram are left out."""
    zones = sorted(powercap.glob("intel-rapl:[0-9]*"))
    packages = [zone for zone in zones if zone.name.count(":") == 1]
    return {f"cpu{number}": zone for number, zone in enumerate(packages)}


def _cpu_readers(powercap: Path, log: PowerLog) -> list[_Reader]:
    packages = _packages(powercap)
    if not packages:
        log.reasons["cpu"] = "no-rapl"
    readers = []
    for device, zone in packages.items():
        try:
            range_uj = int((zone / "max_energy_range_uj").read_text())
            int((zone / "energy_uj").read_text())
        except PermissionError:
            log.reasons[device] = "no-permission"
        except (OSError, ValueError):
            log.reasons[device] = "no-rapl"
        else:
            readers.append(_cpu_reader(device, zone, range_uj))
    return readers


def _cpu_reader(device: str, zone: Path, range_uj: int) -> _Reader:
    last_uj, wraps = 0, 0

    def read() -> dict[str, float | None]:
        nonlocal last_uj, wraps
        now_uj = int((zone / "energy_uj").read_text())
        wraps += now_uj < last_uj  # the counter began again at 0
        last_uj = now_uj
        return {"energy_j": (now_uj + wraps * range_uj) / 1e6}

    return _Reader(device, read)


def _sample_until(
    stop: threading.Event, readers: Sequence[_Reader], log: PowerLog, interval_s: float
) -> None:
    due_s = time.perf_counter() + interval_s
    while not stop.wait(max(0.0, due_s - time.perf_counter())):
        _sample(readers, log)
        due_s += interval_s


def _sample(readers: Sequence[_Reader], log: PowerLog) -> None:
    for reader in readers:
        found = reader.read()
        if found:
            log.samples.append(Sample(time.perf_counter(), reader.device, **found))


def _index_of(name: str) -> int:
    if name.isdigit():
        return int(name)
    handle = pynvml.nvmlDeviceGetHandleByUUID(name.encode())
    return int(pynvml.nvmlDeviceGetIndex(handle))
