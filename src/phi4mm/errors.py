"""The error tree: what can go wrong, and whose fault it is.

    Phi4MMError
    ├── ModelFileError        a checkpoint, GGUF file or bundle is not what it must be
    ├── InputError            the request cannot be answered as given
    │   ├── SettingError      a setting is out of range
    │   ├── MediaError        a picture or a clip cannot be decoded or is out of bounds
    │   │   └── MediaTooLarge it is larger than the caller lets it be
    │   └── PromptTooLong     the prompt does not fit the context
    ├── Overloaded            more requests are waiting than may wait
    ├── NativeError           a call into libllama or ggml failed
    └── Cancelled             the caller asked to stop

``ModelFileError`` and ``InputError`` are the user's to mend (exit code 2, HTTP 400); the others are
ours (exit code 1, HTTP 500).  Every message is one line that names the file, field or number and
says what would be right.
"""

from __future__ import annotations

from typing import Literal


class Phi4MMError(Exception):
    """Base of every error this package raises on purpose."""


class ModelFileError(Phi4MMError):
    """A model file is malformed, incomplete, of the wrong kind, or does not match its siblings."""


class InputError(Phi4MMError):
    """The request cannot be answered as given."""


class SettingError(InputError):
    """A setting is out of range, or none of its values.

    Attributes:
        name: what the Python interface calls the setting; other front ends have words of their own.
        problem: the rest of a sentence that begins with the name.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, str]]:
        return SettingError, (self.name, self.problem)


class MediaError(InputError):
    """A picture or an audio clip cannot be decoded, or exceeds a limit."""


class MediaTooLarge(MediaError):
    """A picture or a clip is larger than the caller lets it be.

    Attributes:
        limit: of what there is too much; each front end has a setting of its own for it.
    """

    def __init__(self, message: str, limit: Literal["pixels", "seconds"]) -> None:
        super().__init__(message)
        self.limit = limit

    def __reduce__(self) -> tuple[type[MediaTooLarge], tuple[str, str]]:
        return MediaTooLarge, (str(self), self.limit)


class PromptTooLong(InputError):
    """The prompt needs more positions than the context has.

    Attributes:
        n_tokens: tokens the prompt needs, soft tokens of media included; or how many it needs at
            least, where its text is too long to be worth tokenising.
        n_ctx: positions the context has for one sequence.
    """

    def __init__(self, n_tokens: int, n_ctx: int, *, is_least: bool = False) -> None:
        """Say how many tokens there are, or how many at least."""
        super().__init__(
            f"the prompt has {'at least ' * is_least}{n_tokens} tokens, the context holds {n_ctx}: "
            f"shorten it, use smaller media, or raise the context size (-c)"
        )
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class Overloaded(Phi4MMError):
    """More requests are waiting than may wait: try again later."""


class NativeError(Phi4MMError):
    """A call into the native library failed.

    Attributes:
        call: the C function.
        code: what it returned, if it returned a status.
    """

    def __init__(self, call: str, code: int | None = None, detail: str = "") -> None:
        status = "" if code is None else f" returned {code}"
        super().__init__(f"{call}{status or ' failed'}{': ' + detail if detail else ''}")
        self.call = call
        self.code = code


class Cancelled(Phi4MMError):
    """The work was stopped because the caller asked for it."""
