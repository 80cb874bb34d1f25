"""Which requests have a slot, which wait, and whose turn it is.  Computes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from phi4mm.engine.answer import Answer
from phi4mm.engine.sequence import Sequence
from phi4mm.engine.slot import Rows, Slot
from phi4mm.engine.slot_pool import SlotPool
from phi4mm.errors import Overloaded
from phi4mm.native.llama import Adapter

Filling = Generator[None, None, Rows]


@dataclass(eq=False)
class Request:
    """A sequence on its way.

    It waits without a slot; in its slot it is filled first, then it generates.

    Attributes:
        id: what the caller knows it by.
        sequence: prompt and what was generated.
        answer: turns logits into events.
        adapter: of the decoder.
        pool: where its slot is.
        slot: None while it waits.
        filling: the prefill that is going on, or None.
    """

    id: int
    sequence: Sequence
    answer: Answer
    adapter: Adapter | None
    pool: SlotPool
    slot: Slot | None = None
    filling: Filling | None = None


class Scheduler:
    """First come, first served, for each pool of slots; fills in turn; generates all at once.

    Args:
        start_filling: the prefill of a request that has just got its slot.
        max_waiting: how many may wait.
    """

    def __init__(self, start_filling: Callable[[Request], Filling], max_waiting: int) -> None:
        self._start_filling = start_filling
        self._max_waiting = max_waiting
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._to_fill: deque[Request] = deque()

    @property
    def n_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Requests with one."""
        return len(self._running)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._running or any(r.id == request_id for r in self._waiting)

    def add(self, request: Request) -> None:
        """Take a request in.

        Raises:
            Overloaded: it would have to wait, and as many as may wait do already.
        """
        self._waiting.append(request)
        self.admit()
        if request.slot is None and len(self._waiting) > self._max_waiting:
            self._waiting.remove(request)
            raise Overloaded(f"{self._max_waiting} requests are waiting already: try again later")

    def admit(self) -> None:
        """Give free slots to those that wait."""
        full: set[SlotPool] = set()
        for request in list(self._waiting):
            if request.pool in full:
                continue
            request.slot = request.pool.acquire(request.sequence.keys, request.adapter)
            if request.slot is None:
                full.add(request.pool)
                continue
            self._waiting.remove(request)
            self._running[request.id] = request
            self._begin(request, request.slot)

    def _begin(self, request: Request, slot: Slot) -> None:
        sequence = request.sequence
        n_kept = slot.begin(sequence.keys, request.adapter)
        if sequence.generated:
            sequence.n_refilled += sequence.n_tokens - 1 - n_kept  # the last one is new
        else:
            sequence.n_cached = n_kept
        request.filling = self._start_filling(request)
        self._to_fill.append(request)

    def next_to_fill(self) -> Request | None:
        """Whose prefill goes on now; each has its turn."""
        if not self._to_fill:
            return None
        self._to_fill.rotate(-1)
        return self._to_fill[-1]

    def filled(self, request: Request) -> None:
        """A prefill is complete: from now on the request generates."""
        self._to_fill.remove(request)
        request.filling = None

    def generating(self) -> Iterator[list[Request]]:
        """Those that generate, in groups that one step can compute: same context, same adapter.

        A context's group of the adapter that it has comes first: libllama plans its graphs anew
        whenever the adapter changes.
        """
        groups: dict[tuple[SlotPool, Adapter | None], list[Request]] = {}
        for request in self._running.values():
            if request.filling is None:
                groups.setdefault((request.pool, request.adapter), []).append(request)
        changes = {place: place[0].adapter is not place[1] for place in groups}
        for place in sorted(groups, key=changes.__getitem__):
            yield groups[place]

    def move(self, request: Request, pool: SlotPool) -> None:
        """Let a request go on in another pool; it is next in line for a slot there."""
        self.remove(request.id)
        request.pool = pool
        self._waiting.appendleft(request)

    def remove(self, request_id: int) -> None:
        """Free what a request holds; one that is not here is no matter."""
        request = self._running.pop(request_id, None)
        if request is None:
            self._waiting = deque(r for r in self._waiting if r.id != request_id)
            return
        if request.filling is not None:
            request.filling.close()
            self.filled(request)
        assert request.slot is not None
        request.slot.is_busy = False
        request.slot = None

    def clear(self) -> None:
        """Remove every request."""
        for request_id in [*self._running, *(request.id for request in self._waiting)]:
            self.remove(request_id)
