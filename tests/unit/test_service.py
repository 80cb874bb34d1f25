"""What requests share in the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

from phi4mm.engine.parameters import EngineParams
from phi4mm.server.service import Service
from phi4mm.server.settings import BundlePaths, ServerSettings


def test_who_waits_for_a_slow_host_keeps_nobody_from_being_planned(tiny_path: Path) -> None:
    service = Service(ServerSettings(BundlePaths(tiny_path), EngineParams()))
    host = Event()

    def tokenise() -> list[int]:
        with service.at_work:
            return service.tokenizer.encode("Hello")

    async def run() -> list[int]:
        slow = [asyncio.create_task(service.plan_with(host.wait)) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(service.plan_with(tokenise), 30)
        finally:
            host.set()
            await asyncio.gather(*slow)
            await service.close()

    assert asyncio.run(run()) == service.tokenizer.encode("Hello")
