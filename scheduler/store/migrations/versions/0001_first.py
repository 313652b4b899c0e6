"""The first schema."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlmodel import UTCDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "boards",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("board", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "hand_backs",
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("decided_at", UTCDateTime(), nullable=False),
        sa.Column("signal_at", UTCDateTime(), nullable=False),
        sa.Column("freed_at", UTCDateTime(), nullable=True),
        sa.Column("ready_at", UTCDateTime(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("service", "decided_at"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("team", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("submitted_at", UTCDateTime(), nullable=False),
        sa.Column("decided_at", UTCDateTime(), nullable=True),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.Column("approval_why", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("cancelled_by", sa.String(), nullable=False),
        sa.Column("handed_over", sa.Boolean(), nullable=False),
        sa.Column("told_wait", sa.String(), nullable=False),
        sa.Column("told_deadline", sa.Boolean(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("used_gpu_s", sa.Float(), nullable=False),
        sa.Column("kept_gpu_s", sa.Float(), nullable=False),
        sa.Column("lost_gpu_s", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_jobs_owner", "jobs", ["owner"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_team", "jobs", ["team"])

    leader = op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("until", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    # The only row, so that a lease is taken by one guarded update. Token 0 is nobody's.
    op.bulk_insert(leader, [{"id": 1, "owner": "", "token": 0, "until": datetime(1970, 1, 1, tzinfo=UTC)}])

    op.create_table(
        "observations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("have", sa.Integer(), nullable=False),
        sa.Column("want", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_observations_at", "observations", ["at"])

    op.create_table(
        "requests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )
    unanswered = sa.text("answer IS NULL")
    op.create_index("requests_open", "requests", ["id"], sqlite_where=unanswered, postgresql_where=unanswered)

    op.create_table(
        "seen",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_seen_at", "seen", ["at"])

    op.create_table(
        "turns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("acted", sa.Boolean(), nullable=False),
        sa.Column("snapshot", sa.LargeBinary(), nullable=False),
        sa.Column("plan", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_turns_at", "turns", ["at"])

    op.create_table(
        "cards",
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("ts", sa.String(), nullable=False),
        sa.Column("shown_version", sa.Integer(), nullable=False),
        sa.Column("drawn", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index("cards_by_message", "cards", ["channel", "ts"])

    op.create_table(
        "notices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("terminal", sa.Boolean(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("expanded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_notices_job", "notices", ["job"])
    terminal = sa.text("terminal")
    op.create_index(
        "notices_one_terminal", "notices", ["job"], unique=True, sqlite_where=terminal, postgresql_where=terminal
    )
    op.create_index("notices_by_expanded", "notices", ["expanded", "id"])

    op.create_table(
        "tasks",
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("wait", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("unseen", sa.Integer(), nullable=False),
        sa.Column("ran_s", sa.Float(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job", "name"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("notice", sa.Integer(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("ts", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["notice"], ["notices.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("notice", "place", name="deliveries_one_a_place"),
    )
    op.create_index("ix_deliveries_state", "deliveries", ["state"])

    op.create_table(
        "runs",
        sa.Column("uid", sa.String(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("window_until", UTCDateTime(), nullable=True),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("intent", sa.String(), nullable=False),
        sa.Column("intent_at", UTCDateTime(), nullable=True),
        sa.Column("intent_why", sa.Text(), nullable=False),
        sa.Column("for_service", sa.String(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("kept_s", sa.Float(), nullable=False),
        sa.Column("lost_s", sa.Float(), nullable=False),
        sa.Column("restart_s", sa.Float(), nullable=False),
        sa.Column("ending_s", sa.Float(), nullable=False),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job", "task"], ["tasks.job", "tasks.name"]),
        sa.PrimaryKeyConstraint("uid"),
    )
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_index("runs_of_task", "runs", ["job", "task"])


def downgrade() -> None:

    op.drop_table("runs")

    op.drop_table("deliveries")
    op.drop_table("tasks")

    op.drop_table("notices")

    op.drop_table("cards")

    op.drop_table("turns")

    op.drop_table("seen")

    op.drop_table("requests")

    op.drop_table("observations")
    op.drop_table("leader")

    op.drop_table("jobs")
    op.drop_table("hand_backs")
    op.drop_table("boards")
    op.drop_table("audits")
