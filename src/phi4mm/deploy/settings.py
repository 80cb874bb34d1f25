"""Settings of a server as plain values, for files that other programs read, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from phi4mm.errors import InputError
from phi4mm.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What every replica is started with.

    Attributes:
        server: as for one server, without keys: they do not belong in a file that is passed on.
        api_key_file: keys, one on each line, on every host; None lets everybody in.
    """

    server: ServerSettings
    api_key_file: Path | None = None

    def with_keys(self) -> ServerSettings:
        """The server's settings, with the keys read from this host's file.

        Raises:
            InputError: the file cannot be read or holds no key.
        """
        if self.api_key_file is None:
            return self.server
        try:
            lines = self.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            raise InputError(f"api_key_file {self.api_key_file}: cannot be read") from None
        keys = tuple(line.strip() for line in lines if line.strip())
        if not keys:
            raise InputError(f"api_key_file {self.api_key_file}: holds no key")
        return replace(self.server, api_keys=keys)


_ADAPTER = TypeAdapter(ReplicaSettings)


def to_values(settings: ReplicaSettings) -> dict[str, Any]:
    """Plain values, defaults left out.

    Raises:
        InputError: there are keys in it.
    """
    if settings.server.api_keys:
        raise InputError("keys do not go into this file: use --api-key-file")
    values: dict[str, Any] = _ADAPTER.dump_python(settings, mode="json", exclude_defaults=True)
    return values


def from_values(values: dict[str, Any]) -> ReplicaSettings:
    """The settings of plain values.

    Raises:
        InputError: a value is missing, unknown or out of range; names it.
    """
    try:
        return _ADAPTER.validate_python(values, extra="forbid")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, fault["loc"])) or "args"
        raise InputError(f"{where}: {fault['msg']}") from None
