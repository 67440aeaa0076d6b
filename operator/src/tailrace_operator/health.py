"""The operator's own port: `/livez`, `/readyz` and `/metrics`. IO: HTTP, served by the same event loop that reconciles.

That the port answers at all is the loop's heartbeat. A leader is alive only while it can list its resources now and then; a standby, and
anybody while the API server is away, is alive by the heartbeat alone: a restart would mend nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

STALE_S = 1800.0
"""A leader whose last list is older than this has lost its way: three re-lists."""


@dataclass(slots=True)
class Health:
    """What is known of the process."""

    is_leading: bool = False
    last_list: float | None = None
    """When all resources were last listed, on the event loop's clock."""

    def is_live(self, now: float) -> bool:
        """Whether a restart is not due."""
        return not self.is_leading or self.last_list is None or now - self.last_list <= STALE_S


async def serve(host: str, port: int, health: Health, registry: CollectorRegistry, now: Callable[[], float]) -> web.AppRunner:
    """Opens the port. OSError when it is taken."""

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if health.is_live(now()) else web.Response(status=503, text="resources were not listed for long\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="leading\n" if health.is_leading else "standing by\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
