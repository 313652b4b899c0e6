"""`make bench`: every measurement, as one JSON object."""

from __future__ import annotations

import json
import platform

from tests.bench import acks, memory, plan, pool, sim, store, turn


def main() -> None:
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "plan": plan.rows(),
                "placements": plan.placements(),
                "sim": sim.rows(),
                "pool": pool.rows(),
                "store": store.rows(),
                "turn": turn.rows(),
                "memory": memory.rows(),
                "acks": acks.rows(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
