"""Which devices the decoder's layers and the encoders go to; GPUs are stood in for."""

import dataclasses
import json

import pytest

from phi4mm import InputError, Offload, Phi4MM
from phi4mm.cli.main import main
from phi4mm.engine import encoding
from phi4mm.native import device as device_module
from phi4mm.native.device import list_devices
from phi4mm.native.library import load
from phi4mm.native.llama import model_params

GPUS = {"CUDA0": "gpu", "CUDA1": "gpu", "BLAS": "accel", "CPU": "cpu"}
_TYPES = {"cpu": 0, "gpu": 1, "igpu": 2, "accel": 3}


class WithDevices:
    """The native library's symbols, except that other devices are there."""

    def __init__(self, ffi, lib, devices):
        self._ffi, self._lib = ffi, lib
        self._names, self._kinds = list(devices), list(devices.values())
        self._texts = [ffi.new("char[]", name.encode()) for name in devices]

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def handle(self, name):
        return self._ffi.cast("ggml_backend_dev_t", 0x1000 + self._names.index(name))

    def _index(self, handle):
        return int(self._ffi.cast("uintptr_t", handle)) - 0x1000

    def ggml_backend_dev_count(self):
        return len(self._names)

    def ggml_backend_dev_get(self, index):
        return self.handle(self._names[index])

    def ggml_backend_dev_by_name(self, name):
        known = name.decode() in self._names
        return self.handle(name.decode()) if known else self._ffi.NULL

    def ggml_backend_dev_name(self, handle):
        return self._texts[self._index(handle)]

    ggml_backend_dev_description = ggml_backend_dev_name

    def ggml_backend_dev_type(self, handle):
        return _TYPES[self._kinds[self._index(handle)]]

    def ggml_backend_dev_memory(self, handle, free, total):
        free[0], total[0] = 1 << 30, 4 << 30

    def llama_supports_gpu_offload(self):
        return "gpu" in self._kinds or "igpu" in self._kinds


def library_with(devices):
    library = load()
    return dataclasses.replace(library, lib=WithDevices(library.ffi, library.lib, devices))


@pytest.fixture
def gpus():
    return library_with(GPUS)


def chosen(library, offload):
    """(layers, names of the devices) as the native parameters have them; None for any."""
    params, devices = model_params(library, offload)
    if devices is None:
        assert params.devices == library.ffi.NULL
        return params.n_gpu_layers, None
    assert params.devices == devices
    *handles, end = devices
    assert end == library.ffi.NULL
    return params.n_gpu_layers, [name for h in handles for name in GPUS
                                 if h == library.lib.handle(name)]  # fmt: skip


@pytest.mark.parametrize(
    ("offload", "decoder", "encoders"),
    [
        (Offload(), (0, None), None),
        (Offload(99), (99, None), "CUDA0"),
        (Offload(99, encoders=False), (99, None), None),
        (Offload(12, ("CUDA1",)), (12, ["CUDA1"]), "CUDA1"),
        (Offload(12, ("CUDA1", "CUDA0")), (12, ["CUDA1", "CUDA0"]), "CUDA1"),
        (Offload(12, main_gpu=1), (12, ["CUDA1"]), "CUDA1"),
        (Offload(12, ("CUDA1", "CUDA0"), main_gpu=1), (12, ["CUDA0"]), "CUDA0"),
        (Offload(0, ("CUDA1",)), (0, ["CUDA1"]), "CUDA1"),
        (Offload(0, ()), (0, []), None),
    ],
)
def test_layers_and_encoders_go_where_they_are_told(gpus, offload, decoder, encoders):
    assert chosen(gpus, offload) == decoder
    assert offload.encoder_device(gpus) == encoders


def test_integrated_ones_are_used_where_there_are_no_others():
    both = library_with({"Vulkan0": "igpu", "CUDA0": "gpu", "CPU": "cpu"})
    assert Offload(99).encoder_device(both) == "CUDA0"
    alone = library_with({"CPU": "cpu", "Vulkan0": "igpu"})
    assert Offload(99).encoder_device(alone) == "Vulkan0"


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        (Offload(1, ("CUDA7",)), "no device 'CUDA7', expected one of CUDA0, CUDA1, BLAS, CPU"),
        (Offload(1, ("CPU",)), r"CPU is no accelerator \(cpu\)"),
        (Offload(1, ("BLAS",)), r"BLAS is no accelerator \(accel\)"),
        (Offload(1, main_gpu=2), "main_gpu is 2, expected at most 1.*CUDA0, CUDA1"),
        (Offload(1, ("CUDA1",), main_gpu=1), "main_gpu is 1, expected at most 0.*CUDA1"),
    ],
)
def test_wrong_devices_are_named(gpus, offload, message):
    with pytest.raises(InputError, match=message):
        model_params(gpus, offload)
    with pytest.raises(InputError, match=message):
        offload.encoder_device(gpus)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_gpu_layers": -1}, "n_gpu_layers is -1"),
        ({"n_gpu_layers": True}, "n_gpu_layers is True"),
        ({"n_gpu_layers": 1, "main_gpu": -1}, "main_gpu is -1"),
        ({"main_gpu": 0}, "main_gpu is 0, but nothing goes to an accelerator"),
        ({"n_gpu_layers": 1, "devices": ()}, "devices are none"),
        ({"devices": ("a", "a")}, "give each once"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Offload(**settings)


def test_the_encoders_compute_on_the_device_named(sample_bundle_path, monkeypatch):
    class Stop(Exception):
        pass

    def backend(library, n_threads, abort, device):
        raise Stop(device)

    fake = library_with(GPUS)
    monkeypatch.setattr(encoding, "load", lambda: fake)
    monkeypatch.setattr(encoding, "Backend", backend)
    offload = Offload(1, ("CUDA1",))
    with Phi4MM(sample_bundle_path, offload=offload) as model, pytest.raises(Stop, match="CUDA1"):
        model.load()


@pytest.fixture
def sample_bundle_path():
    from phi4mm.cli.options import sample_bundle

    return sample_bundle()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "CUDA9"], "there is no device 'CUDA9'"),
        (["--device", "CPU"], "CPU is no accelerator"),
        (["--main-gpu", "1"], "--main-gpu is 1, but nothing goes to an accelerator"),
        (["-ngl", "1", "--device", "none"], "--n-gpu-layers is 1, but devices are none"),
    ],
)
def test_flags_reach_the_engine(flags, message, capsys):
    assert main(["run", "-p", "Hello", "-n", "1", *flags]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(load().lib.llama_supports_gpu_offload(), reason="there is a GPU")
def test_layers_for_a_missing_gpu_are_refused(capsys):
    assert main(["run", "-p", "Hello", "-n", "1", "-ngl", "1"]) == 2
    assert "finds no GPU" in capsys.readouterr().err.splitlines()[-1]


def test_devices_are_listed(capsys):
    assert main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    (cpu,) = (d for d in listed["devices"] if d["kind"] == "cpu")
    assert cpu["name"] == "CPU"
    assert not cpu["is_accelerator"]
    assert listed["library"]["carrier"] == load().carrier
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("CPU")
    assert lines[-1].startswith("library: ")


def test_accelerators_are_listed_with_their_memory(gpus, capsys, monkeypatch):
    monkeypatch.setattr("phi4mm.native.library.load", lambda: gpus)
    assert main(["devices"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["CUDA0", "accelerator"]
    assert "4.29 GB" in first
    assert "1.07 GB free" in first
    assert last.startswith("library")
    assert list_devices(gpus)[2] == device_module.Device("BLAS", "BLAS", "accel", 1 << 30, 4 << 30)
