"""A systemd unit for the server that can do little besides serving.

``MemoryDenyWriteExecute`` is left out: the native library's log comes back through a callback that
is made while the program runs, and that needs memory to write to and to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phi4mm.errors import InputError

_STATE = "/var/lib/phi4mm"
_STOP_S = 90  # the server gives running answers a minute
_HOMES = ("/home", "/root", "/run/user")

_UNIT = """\
# Install:  sudo cp {name} /etc/systemd/system/ && sudo systemctl enable --now {name}
# Keys:     PHI4MM_API_KEY=... in /etc/phi4mm/environment, mode 600
[Unit]
Description=phi4mm: Phi-4-multimodal-instruct behind the OpenAI API
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={command}
EnvironmentFile=-/etc/phi4mm/environment
Environment=HOME={state} PYTHONDONTWRITEBYTECODE=1
StateDirectory=phi4mm
WorkingDirectory={state}
Restart=on-failure
RestartSec=5
# the server alone is told to stop: it ends its engine once running answers are complete
KillMode=mixed
TimeoutStopSec={stop_s}
OOMPolicy=continue
{user}{credentials}
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
UMask=0077
ProtectSystem=strict{writable}
ProtectHome={home}
ProtectProc=invisible
ProcSubset={processes}
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
PrivateDevices={private_devices}
LockPersonality=yes
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Service:
    """What runs, and as whom.

    Attributes:
        name: of the unit's file.
        command: the program and its arguments; paths are absolute.
        paths: files and folders it must be able to read.
        cache: folder it must be able to write to, besides its own; None without.
        user: whose account it runs under; None makes one while it runs.
        key_file: file of API keys, handed over by systemd; None without.
        uses_accelerator: whether it must reach devices.
    """

    name: str
    command: Sequence[str]
    paths: tuple[Path, ...]
    cache: Path | None
    user: str | None
    key_file: Path | None
    uses_accelerator: bool


def unit_text(service: Service) -> str:
    """The unit.

    Raises:
        InputError: what it must read lies in a home folder, which its account cannot see; it
            cannot write to its cache; or a word cannot stand in a unit.
    """
    for word in (*service.command, service.user or "", str(service.key_file or "")):
        if not word.isprintable():
            raise InputError(f"{word!r}: a unit cannot hold line breaks and the like")
    if service.user is None:
        for path in service.paths:
            if any(path.is_relative_to(home) for home in _HOMES):
                raise InputError(
                    f"{path}: lies in a home folder, which the service's own account cannot read: "
                    "move it to /srv or /opt, or give --run-as USER"
                )
    cache = _outside_state(service.cache)
    if cache is not None and service.user is None:
        raise InputError(
            f"--encoder-cache {cache}: the service's own account can write to {_STATE} only: "
            f"give --encoder-cache {_STATE}/encoders, or --run-as USER"
        )
    if cache is not None and not cache.is_dir():
        raise InputError(
            f"--encoder-cache {cache}: no such folder: make it first, the service cannot"
        )
    key_file = service.key_file
    credentials = "" if key_file is None else f"\nLoadCredential=api-keys:{_escaped(str(key_file))}"
    keys = () if key_file is None else ("--api-key-file", "%d/api-keys")
    command = [*map(_quoted, service.command), *keys]
    return _UNIT.format(
        name=service.name,
        command=" ".join(command),
        state=_STATE,
        stop_s=_STOP_S,
        user="DynamicUser=yes" if service.user is None else f"User={service.user}",
        credentials=credentials,
        writable="" if cache is None else f"\nReadWritePaths={_quoted(str(cache))}",
        home="yes" if service.user is None else "read-only",
        # drivers read /proc and are reached through /dev
        processes="all" if service.uses_accelerator else "pid",
        private_devices="no" if service.uses_accelerator else "yes",
    )


def _outside_state(cache: Path | None) -> Path | None:
    """The cache, unless it lies in the folder that the service has anyway."""
    return None if cache is None or cache.is_relative_to(_STATE) else cache


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command line, as systemd reads it."""
    if word and all(char.isalnum() or char in "-_./:=,@+" for char in word):
        return word
    escaped = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'
