"""A run remembers when the time that it got to end is over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlmodel import UTCDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("kill_at", UTCDateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "kill_at")
