"""Commands that start the scheduler and look after what it needs."""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.cli.doctor import examine
from scheduler.cli.health import Health
from scheduler.cli.say import NO, Say, table
from scheduler.service import Service, Ticks
from scheduler.settings import Settings
from scheduler.store import migrations
from scheduler.wiring import House, check_metrics, clock, house, mailbox

log = logging.getLogger(__name__)


def migrate(_: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Brings the database's schema up to date."""
    migrations.migrate(settings.database_url)
    revision = migrations.current(settings.database_url)
    return say.answer({"ok": True, "revision": revision}, [f"The database is at revision {revision}."])


def serve(options: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Runs turns until SIGTERM or SIGINT; the turn under way is finished first."""
    del say
    migrations.migrate(settings.database_url)
    parts = house(settings, observe_only=options.observe_only)
    tick_s = settings.cluster.tick_s
    ticks = Ticks(turn_s=tick_s, watchdog_s=max(60.0, 3 * tick_s))
    service = Service(parts.cycle, ticks, clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    parts.ground.take()
    parts.ground.listen(service.hint)
    if not settings.approval.approvers:
        log.warning("[approval] approvers is empty: nobody can approve a job that needs it")
    if settings.metrics.kind == "prometheus":
        for fault in check_metrics(settings, ()):
            log.warning("[metrics] %s", fault)
    log.info("gpujob serves: tick=%gs observe_only=%s", tick_s, options.observe_only)
    with _health(options, settings, parts, service, ticks):
        service.run()
    parts.outside.leadership.let_go(parts.cycle.owner)
    parts.store.close()
    parts.ground.leave()
    log.info("gpujob has stopped")
    return 0


@contextmanager
def _health(
    options: argparse.Namespace, settings: Settings, parts: House, service: Service, ticks: Ticks
) -> Iterator[None]:
    if options.health_port is None:
        yield
        return
    health = Health(
        options.health_port,
        age_s=service.age_s,
        limit_s=ticks.watchdog_s,
        board=mailbox(settings).board,
        hand_backs=parts.store.hand_backs,
        counts=parts.ground.counts,
        clock=clock,
    )
    health.start()
    log.info("health and metrics on port %d", health.server_port)
    try:
        yield
    finally:
        health.stop()


def doctor(_: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Checks everything outside: `ok checks[{what, ok, says}]`."""
    checks = examine(settings)
    healthy = all(check.ok for check in checks)
    plain = {"ok": healthy, "checks": [{"what": c.what, "ok": c.ok, "says": c.says} for c in checks]}
    lines = table(("", "what", "says"), [("ok" if c.ok else "!!", c.what, c.says) for c in checks])
    return say.answer(plain, lines, code=0 if healthy else NO)
