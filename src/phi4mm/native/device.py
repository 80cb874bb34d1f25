"""The devices that ggml can compute on, and which of them the user wants used.

No model is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from phi4mm.errors import InputError, SettingError
from phi4mm.native.library import Library

DeviceKind = Literal["cpu", "gpu", "igpu", "accel", "meta"]
_KINDS: Final[tuple[DeviceKind, ...]] = ("cpu", "gpu", "igpu", "accel", "meta")
_MAX_LAYERS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Device:
    """Something that computes.

    Attributes:
        name: ggml's name, such as ``CPU``, ``CUDA0``, ``Vulkan1``.
        description: what its maker calls it.
        kind: ``gpu`` with memory of its own, ``igpu`` with the machine's, ``accel`` for what helps
            the CPU; ggml's words.
        n_bytes_free: memory that is free, as the device says; 0 where it does not say.
        n_bytes: memory in all.
    """

    name: str
    description: str
    kind: DeviceKind
    n_bytes_free: int
    n_bytes: int

    @property
    def is_accelerator(self) -> bool:
        """Whether layers and encoders can be given to it."""
        return self.kind in ("gpu", "igpu")


def list_devices(library: Library) -> tuple[Device, ...]:
    """All devices that the library finds, in its order."""
    lib = library.lib
    n_devices = lib.ggml_backend_dev_count()
    return tuple(_describe(library, lib.ggml_backend_dev_get(i)) for i in range(n_devices))


def device_handle(library: Library, name: str) -> Any:
    """The C pointer of a device.

    Raises:
        InputError: there is no such device; names those there are.
    """
    handle = library.lib.ggml_backend_dev_by_name(name.encode())
    if handle == library.ffi.NULL:
        known = ", ".join(device.name for device in list_devices(library))
        raise InputError(f"there is no device {name!r}, expected one of {known}")
    return handle


def _describe(library: Library, handle: Any) -> Device:
    ffi, lib = library.ffi, library.lib
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    return Device(
        ffi.string(lib.ggml_backend_dev_name(handle)).decode(),
        ffi.string(lib.ggml_backend_dev_description(handle)).decode(errors="replace"),
        _KINDS[lib.ggml_backend_dev_type(handle)],
        int(free[0]),
        int(total[0]),
    )


@dataclass(frozen=True, slots=True)
class Offload:
    """What goes to accelerators, and to which.  By default nothing does.

    Attributes:
        n_gpu_layers: layers of the decoder; more than it has is all of them.
        devices: ggml's names of the accelerators to use; None for all, where there are layers to
            give them; empty for none.  Named ones get the encoders even without layers.
        main_gpu: position, from 0, of the one among these devices that gets everything; None
            spreads the layers over all of them and gives the encoders to the first.
        encoders: whether the encoders go along; they stay on the CPU otherwise.
    """

    n_gpu_layers: int = 0
    devices: tuple[str, ...] | None = None
    main_gpu: int | None = None
    encoders: bool = True

    def __post_init__(self) -> None:
        """Refuse what means nothing on any machine.

        Raises:
            InputError: names the field, its value and what would be right.
        """
        _check_count("n_gpu_layers", self.n_gpu_layers)
        if self.main_gpu is not None:
            _check_count("main_gpu", self.main_gpu)
            if self.n_gpu_layers == 0 and not self.devices:
                raise SettingError(
                    "main_gpu",
                    f"is {self.main_gpu}, but nothing goes to an accelerator: "
                    "give it layers, or name devices",
                )
        if self.devices is not None and len(set(self.devices)) != len(self.devices):
            raise SettingError("devices", f"is {','.join(self.devices)}: give each once")
        if self.devices == () and self.n_gpu_layers > 0:
            raise SettingError("n_gpu_layers", f"is {self.n_gpu_layers}, but devices are none")

    def decoder_devices(self, library: Library) -> tuple[str, ...] | None:
        """Names of the devices for the decoder's layers; None leaves the choice to the library.

        Raises:
            InputError: a device is not there, or is none to give layers to.
        """
        if self.main_gpu is None:
            return None if self.devices is None else self._used(library)
        return (self._main(library),)

    def encoder_device(self, library: Library) -> str | None:
        """Name of the device for the encoders; None for the CPU.

        Raises:
            InputError: as ``decoder_devices``, or layers are wanted and there is no accelerator.
        """
        if not self.encoders or not (self.n_gpu_layers or self.devices):
            return None
        return self._main(library)

    def _main(self, library: Library) -> str:
        used, index = self._used(library), self.main_gpu or 0
        if not used:
            raise no_accelerator(self.n_gpu_layers, library)
        if index >= len(used):
            raise SettingError(
                "main_gpu",
                f"is {index}, expected at most {len(used) - 1}: "
                f"the devices used are {', '.join(used)}",
            )
        return used[index]

    def _used(self, library: Library) -> tuple[str, ...]:
        """The accelerators to use: those named, else those the library would take by itself."""
        found = list_devices(library)
        if self.devices is None:
            # as libllama does: integrated ones only where there are no others
            own, shared = (tuple(d.name for d in found if d.kind == k) for k in ("gpu", "igpu"))
            return own or shared
        for name in self.devices:
            device_handle(library, name)
        for device in found:
            if device.name in self.devices and not device.is_accelerator:
                raise InputError(
                    f"{device.name} is no accelerator ({device.kind}): it needs no naming"
                )
        return self.devices


def no_accelerator(n_gpu_layers: int, library: Library) -> SettingError:
    """Layers are wanted on a GPU and there is none."""
    return SettingError(
        "n_gpu_layers",
        f"is {n_gpu_layers}, but {library.carrier} {library.version} finds no GPU: use 0, or "
        "install a library built for the GPU (docs/platforms.md)",
    )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_LAYERS:
        raise SettingError(name, f"is {value!r}: it must be a whole number, at least 0")


NO_OFFLOAD: Final = Offload()
