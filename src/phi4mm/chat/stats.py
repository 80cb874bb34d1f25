"""Numbers of the last answer, in words."""

from __future__ import annotations

from collections.abc import Iterator

from phi4mm.chat.session import Exchange, Session


def stats_lines(session: Session) -> Iterator[str]:
    """Tokens by kind, cached and new; seconds by phase; how full the context is."""
    last = session.last
    if last is None:
        yield f"nothing was answered yet; the context holds {session.n_ctx} tokens"
        return
    usage, timings = last.event.usage, last.event.timings
    kinds = (("text", usage.n_text), ("image", usage.n_image), ("audio", usage.n_audio))
    by_kind = " + ".join(f"{n} {kind}" for kind, n in kinds if n)
    yield (
        f"prompt: {usage.n_prompt} tokens ({by_kind}), {usage.n_cached} cached, "
        f"{usage.n_prompt - usage.n_cached} new"
    )
    first = "" if timings.first_token_s is None else f"first token {timings.first_token_s:.2f} s · "
    yield (
        f"answer: {usage.n_generated} tokens · {first}encode {timings.encode_s:.2f} s · "
        f"prefill {timings.prefill_s:.2f} s · decode {timings.decode_s:.2f} s{_rate(last)}"
    )
    if last.n_recomputed:
        yield (
            f"RoPE: the conversation outgrew the original context, {last.n_recomputed} tokens were "
            "computed again"
        )
    factors = "long" if last.is_long else "short"
    adapter = last.adapter or "no"
    yield (
        f"context: {last.n_tokens} of {session.n_ctx} tokens · {factors} RoPE factors · "
        f"{adapter} adapter"
    )


def context_note(session: Session) -> str | None:
    """A line where the last answer ended because the context was full."""
    last = session.last
    if last is None or last.event.finish_reason != "length" or last.n_tokens < session.n_ctx:
        return None
    return (
        f"the context is full ({session.n_ctx} tokens), the answer ends here; /clear or /undo, "
        "/set context-shift=oldest, or a larger -c"
    )


def _rate(last: Exchange) -> str:
    n, seconds = last.event.usage.n_generated - 1, last.event.timings.decode_s
    return f" · {n / seconds:.1f} tokens/s" if n > 0 and seconds else ""
