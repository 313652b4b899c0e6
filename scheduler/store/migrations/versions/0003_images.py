"""A job remembers which images its tags stood for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("digests", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("unresolved", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("jobs", "unresolved")
    op.drop_column("jobs", "digests")
