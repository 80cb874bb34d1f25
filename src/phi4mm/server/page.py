"""``/``: one static page to try the model; it needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def page(request: Request) -> Response:
    """The page."""
    text, policy = _page()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


@cache
def _page() -> tuple[str, str]:
    """(HTML, a policy under which its own script is the only one that runs)."""
    text = (files("phi4mm.server") / "page.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text, (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
