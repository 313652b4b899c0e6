"""A rerun from a step keeps the outputs of the steps before it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kept", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("rerun_of", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "rerun_of")
    op.drop_column("jobs", "kept")
