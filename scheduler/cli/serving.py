"""Commands that start the scheduler and look after what it needs."""

from __future__ import annotations

import argparse
import logging
import signal

from scheduler.cli.doctor import examine
from scheduler.cli.say import NO, Say, table
from scheduler.service import Service, Ticks
from scheduler.settings import Settings
from scheduler.store import migrations
from scheduler.wiring import check_metrics, clock, house

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
    service = Service(parts.cycle, Ticks(turn_s=tick_s, watchdog_s=max(60.0, 3 * tick_s)), clock)
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
    service.run()
    parts.outside.leadership.let_go(parts.cycle.owner)
    parts.store.close()
    parts.ground.leave()
    log.info("gpujob has stopped")
    return 0


def doctor(_: argparse.Namespace, say: Say, settings: Settings) -> int:
    """Checks everything outside: `ok checks[{what, ok, says}]`."""
    checks = examine(settings)
    healthy = all(check.ok for check in checks)
    plain = {"ok": healthy, "checks": [{"what": c.what, "ok": c.ok, "says": c.says} for c in checks]}
    lines = table(("", "what", "says"), [("ok" if c.ok else "!!", c.what, c.says) for c in checks])
    return say.answer(plain, lines, code=0 if healthy else NO)
