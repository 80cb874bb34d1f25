"""What the hyper-parameter classes share: fields and keys by table, checks that name the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile import keys
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.metadata import Metadata

WritableValue: TypeAlias = int | float | bool | str | list[int] | list[float] | list[str]
WritableMetadata: TypeAlias = dict[Key, WritableValue]

MAX_WIDTH: Final = 1 << 17
MAX_LAYERS: Final = 512  # libllama's arrays have this many
MIN_EPS: Final = 1e-12
ADAPTER_NAMES: Final = ("vision", "speech")

HParamsT = TypeVar("HParamsT")


@dataclass(frozen=True, slots=True)
class Field:
    """The key of a field and the range of its value, ends included."""

    key: Key
    low: float
    high: float


FieldTable: TypeAlias = Mapping[str, Field]


def read_fields(
    metadata: Metadata, table: FieldTable, absent: Mapping[Key, Any] | None = None
) -> dict[str, Any]:
    """Read the keys of a table; a key of ``absent`` may be missing and then has that value."""
    values: dict[str, Any] = {}
    for name, field in table.items():
        if absent is not None and field.key in absent and field.key not in metadata:
            values[name] = absent[field.key]
        else:
            values[name] = metadata.number(field.key)
    return values


def write_fields(hparams: object, table: FieldTable) -> WritableMetadata:
    """The keys of a table with an object's values."""
    return {field.key: getattr(hparams, name) for name, field in table.items()}


def check_fields(hparams: object, table: FieldTable) -> None:
    """Refuse a value outside its range; NaN is outside of every range."""
    for name, field in table.items():
        value = getattr(hparams, name)
        require(
            field.low <= value <= field.high,
            f"{field.key} is {_text(value)}, must be {_text(field.low)}"
            + (f" to {_text(field.high)}" if field.high > field.low else ""),
        )


def _text(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def construct(cls: type[HParamsT], metadata: Metadata, values: Mapping[str, Any]) -> HParamsT:
    """Make the object; its own checks do not know the file, so name it."""
    try:
        return cls(**values)
    except ModelFileError as error:
        raise metadata.error(str(error)) from None


def number_tuple(metadata: Metadata, key: Key) -> tuple[Any, ...]:
    """An array of numbers as a tuple of Python numbers."""
    return tuple(metadata.numbers(key).tolist())


def adapter_name(metadata: Metadata, key: Key) -> AdapterName | None:
    """The adapter a key names, if the key is there."""
    return cast(AdapterName, metadata.text(key, ADAPTER_NAMES)) if key in metadata else None


def require(condition: bool, text: str) -> None:
    """Raise ModelFileError with this text unless the condition holds."""
    if not condition:
        raise ModelFileError(text)


def check_heads(key: Key, n_head: int, n_embd: int) -> None:
    """Refuse a number of heads that does not divide the width."""
    require(n_embd % n_head == 0, f"{key} is {n_head}, must divide the width {n_embd}")


def check_bundle_id(bundle_id: str | None) -> None:
    """Refuse a bundle id of the wrong form."""
    require(
        bundle_id is None or re.fullmatch("[0-9a-f]{32}", bundle_id) is not None,
        f"{keys.Own.BUNDLE_ID} is {bundle_id!r:.80}, must be 32 hexadecimal digits",
    )


def is_own(metadata: Metadata) -> bool:
    """Whether the file was written in this project's format; refuses another version of it."""
    key = keys.Own.FORMAT_VERSION
    if key not in metadata:
        return False
    version = metadata.number(key)
    if version != keys.FORMAT_VERSION:
        raise metadata.error(
            f"{key} is {version}, must be {keys.FORMAT_VERSION}: convert the model again"
        )
    return True


def bundle_id_of(metadata: Metadata) -> str | None:
    """The bundle id a file names, if it does."""
    if keys.Own.BUNDLE_ID not in metadata:
        return None
    bundle_id = metadata.text(keys.Own.BUNDLE_ID)
    try:
        check_bundle_id(bundle_id)
    except ModelFileError as error:
        raise metadata.error(str(error)) from None
    return bundle_id


def role_metadata(arch: str, type_: str, bundle_id: str | None) -> WritableMetadata:
    """The keys that say what a part is and which bundle it belongs to."""
    role: WritableMetadata = {
        keys.General.ARCHITECTURE: arch,
        keys.General.TYPE: type_,
        keys.Own.FORMAT_VERSION: keys.FORMAT_VERSION,
    }
    return role if bundle_id is None else role | {keys.Own.BUNDLE_ID: bundle_id}
