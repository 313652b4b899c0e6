"""`make harvest`: the benchmark, all files and policies; prints the table and writes it into docs/harvest.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from scheduler.sim.run import run
from scheduler.sim.scenario import read

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "harvest.md"
START, END = "<!-- harvest -->", "<!-- /harvest -->"

Row = tuple[str, str, tuple[str, ...]]  # scenario, name of the policy, knobs

_NIGHT: tuple[str, tuple[str, ...]] = ("night window", ("preset=night",))
_FIFO: tuple[str, tuple[str, ...]] = ("FIFO packed, 1 slot kept", ("preset=fifo", "reserve_slots=1"))
_KUEUE: tuple[str, tuple[str, ...]] = ("Kueue-like", ("preset=kueue",))
_LYRA: tuple[str, tuple[str, ...]] = ("Lyra-like", ("preset=lyra",))
_SLOT: tuple[str, tuple[str, ...]] = ("gpujob, 1 slot kept", ("reserve_slots=1",))
_OURS: tuple[str, tuple[str, ...]] = ("**gpujob**", ())
_SEER: tuple[str, tuple[str, ...]] = ("clairvoyant", ("preset=clairvoyant",))

ROWS: Sequence[Row] = [
    (scenario, *policy)
    for scenario, policies in (
        ("base-seed", (_NIGHT, _FIFO, _KUEUE, _LYRA, _SLOT, _OURS, _SEER)),
        ("base-itp", (_NIGHT, _FIFO, _KUEUE, _LYRA, _SLOT, _OURS, _SEER)),
        ("base-philly", (_NIGHT, _FIFO, _KUEUE, _LYRA, _SLOT, _OURS, _SEER)),
        ("step-itp", (_FIFO, _OURS, _SEER)),
        ("noisy-itp", (_FIFO, _OURS, _SEER)),
        ("base-itp-nockpt", (_FIFO, _OURS)),
        ("base-itp-open", (_FIFO, _LYRA, _OURS, _SEER)),
    )
    for policy in policies
]
_HEAD = (
    "| scenario | policy | useful / oracle | GPUh a day | lost | restart | held | unfilled | preemptions / 1000 GPUh "
    "| scale-ups that wait | mean s | p99 s | JCT mean h | p90 h |"
)


def figures(row: Row) -> Mapping[str, Any]:
    """One run."""
    scenario, _, knobs = row
    return run(read(ROOT / "examples" / "harvest" / f"{scenario}.toml", knobs))


def line(row: Row, found: Mapping[str, Any]) -> str:
    """One line of the table."""
    scenario, policy, _ = row
    cells = (
        f"{found['useful_over_oracle']:.3f}",
        f"{found['useful_gpu_hours'] / 6:.0f}",
        f"{found['lost_share']:.4f}",
        f"{found['restart_share']:.4f}",
        f"{found['held_share']:.3f}",
        f"{found['unfilled_share']:.3f}",
        f"{found['preemptions_per_1000_gpu_hours']:.1f}",
        f"{found['scale_ups_waited_share']:.3f}",
        f"{found['scale_up_wait_mean_s']:.2f}",
        f"{found['scale_up_wait_p99_s']:.0f}",
        *((f"{found['jct_mean_h']:.1f}", f"{found['jct_p90_h']:.1f}") if scenario.endswith("open") else ("", "")),
    )
    return f"| {scenario} | {policy} | {' | '.join(cells)} |"


def into(page: Path, start: str, end: str, lines: Iterable[str]) -> None:
    """Puts lines between two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    _, _, after = rest.partition(end)
    page.write_text("\n".join([f"{before}{start}", *lines, f"{end}{after}"]), encoding="utf-8")


def main() -> None:
    """Two runs at a time."""
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    print("\n".join(lines), flush=True)
    with ProcessPoolExecutor(2) as pool:
        for row, found in zip(ROWS, pool.map(figures, ROWS), strict=True):
            lines.append(line(row, found))
            print(lines[-1], flush=True)
    into(PAGE, START, END, lines)


if __name__ == "__main__":
    main()
