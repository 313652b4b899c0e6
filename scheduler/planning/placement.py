"""On which nodes a task goes: the tightest fit, all nodes of a gang or none."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile

from scheduler.fleet.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """GPUs by node, and how long they probably stay."""

    nodes: Mapping[str, int]
    until: datetime
    confidence: float


@dataclass(slots=True)
class _Piece:
    """What is left of one window."""

    gpus: int
    until: datetime
    confidence: float


class Room:
    """The GPUs that may be lent in this turn; it shrinks as tasks are placed.

    Nodes stand in shelves by their free GPUs, so that placing a task looks at few of them. Free GPUs never grow within
    a turn: what did not fit once does not fit later.
    """

    def __init__(
        self,
        windows: Iterable[Window],
        free: Mapping[str, int],
        sizes: Mapping[str, int],
        hosting: Collection[str] = frozenset(),
    ) -> None:
        """`windows` are open now; `free` by node: GPUs that nobody has or is about to get; `sizes`: of whole nodes.

        `hosting` are nodes on which replicas stand: their GPUs are wanted back first.
        """
        self._hosting = hosting
        self._sizes = sizes
        self._pieces = _pieces(windows, free)
        self._free = {node: sum(piece.gpus for piece in pieces) for node, pieces in self._pieces.items()}
        self._largest = max(self._free.values(), default=0)
        # Replicas fill nodes in the order of names; tasks come from the other end, so that they meet late.
        self._rank = {node: rank for rank, node in enumerate(sorted(self._free, reverse=True))}
        self._shelves: list[list[tuple[bool, int, str]]] = [[] for _ in range(self._largest + 1)]
        for node, gpus in self._free.items():
            insort(self._shelves[gpus], self._place_on_shelf(node))
        # [g]: nodes with at least g GPUs left; counted along, as each of thousands of tasks asks.
        self._with = [sum(free >= gpus for free in self._free.values()) for gpus in range(self._largest + 1)]
        self._at_start = tuple(self._with)
        self._whole = sum(gpus == sizes.get(node) for node, gpus in self._free.items() if gpus)
        self._too_short: dict[tuple[int, int], datetime] = {}

    @property
    def free(self) -> Mapping[str, int]:
        """GPUs left to lend, by node."""
        return self._free

    def place(
        self, gpus: int, nodes: int, outlast: datetime | None, *, open_whole: bool = True, beside: bool = True
    ) -> Placement | None:
        """Takes GPUs on so many different nodes; None, and nothing taken, if they are not there.

        With `outlast`, only GPUs that probably stay idle until then; without `open_whole`, no node that is wholly free;
        without `beside`, none on which a replica stands.
        """
        if not self.fits(gpus, nodes):
            return None
        chosen = (
            self._tightest(gpus, nodes, open_whole=open_whole, beside=beside)
            if outlast is None
            else self._lasting(gpus, nodes, outlast)
        )
        if len(chosen) < nodes:
            return None
        taken = [piece for node in chosen for piece in self._take(node, gpus)]
        return Placement(
            nodes=dict.fromkeys(sorted(chosen), gpus),
            until=min(piece.until for piece in taken),
            confidence=min(piece.confidence for piece in taken),
        )

    def fits(self, gpus: int, nodes: int) -> bool:
        """Whether the GPUs are there now, however short their windows."""
        return gpus <= self._largest and self._with[gpus] >= nodes

    @property
    def whole(self) -> int:
        """Nodes of which every GPU may be lent."""
        return self._whole

    def fitted(self, gpus: int, nodes: int) -> bool:
        """Whether they were there before anything was placed in this turn."""
        return gpus <= self._largest and self._at_start[gpus] >= nodes

    def short_by(self, gpus: int, nodes: int) -> int:
        """GPUs that are missing on the nodes that come nearest."""
        short, left = 0, nodes
        for free in range(self._largest, 0, -1):
            count = min(len(self._shelves[free]), left)
            short += count * max(gpus - free, 0)
            left -= count
        return short + left * gpus

    def _place_on_shelf(self, node: str) -> tuple[bool, int, str]:
        return self._free[node] == self._sizes.get(node), self._rank[node], node

    def _tightest(self, gpus: int, nodes: int, *, open_whole: bool, beside: bool) -> list[str]:
        chosen: list[str] = []
        for shelf in self._shelves[gpus:]:
            fitting: Iterable[tuple[bool, int, str]] = shelf
            if not beside:
                fitting = (place for place in fitting if place[2] not in self._hosting)
            if not open_whole:
                fitting = takewhile(lambda place: not place[0], fitting)  # partly used nodes stand first
            chosen.extend(node for _, _, node in islice(fitting, nodes - len(chosen)))
        return chosen

    def _lasting(self, gpus: int, nodes: int, outlast: datetime) -> list[str]:
        failed = self._too_short.get((gpus, nodes))
        if failed is not None and failed <= outlast:
            return []
        chosen = []
        for shelf in self._shelves[gpus:]:
            for _, _, node in shelf:
                if sum(piece.gpus for piece in self._pieces[node] if piece.until >= outlast) >= gpus:
                    chosen.append(node)
                if len(chosen) == nodes:
                    return chosen
        self._too_short[gpus, nodes] = outlast
        return []

    def _take(self, node: str, gpus: int) -> Sequence[_Piece]:
        """The GPUs that stay longest: what is left idle beside them is wanted back first."""
        self._whole -= self._free[node] == self._sizes.get(node)
        self._shelves[self._free[node]].remove(self._place_on_shelf(node))
        for number in range(self._free[node] - gpus + 1, self._free[node] + 1):
            self._with[number] -= 1
        self._free[node] -= gpus
        insort(self._shelves[self._free[node]], self._place_on_shelf(node))
        taken, self._pieces[node] = _split(self._pieces[node], gpus)
        return taken


def _pieces(windows: Iterable[Window], free: Mapping[str, int]) -> dict[str, list[_Piece]]:
    """By node, the longest first, and never more than is free."""
    by_node: defaultdict[str, list[_Piece]] = defaultdict(list)
    for window in windows:
        if free.get(window.node, 0) > 0:
            by_node[window.node].append(_Piece(window.gpus, window.until, window.confidence))
    for node, pieces in by_node.items():
        pieces.sort(key=lambda piece: (piece.until, piece.confidence, piece.gpus), reverse=True)
        # What took GPUs since the windows were found took the longest ones, as tasks do.
        over = sum(piece.gpus for piece in pieces) - free[node]
        by_node[node] = _split(pieces, over)[1] if over > 0 else pieces
    return by_node


def _split(pieces: Sequence[_Piece], gpus: int) -> tuple[list[_Piece], list[_Piece]]:
    """The first `gpus` of them, and the rest."""
    first: list[_Piece] = []
    rest: list[_Piece] = []
    for piece in pieces:
        taken = min(piece.gpus, gpus)
        gpus -= taken
        if taken:
            first.append(_Piece(taken, piece.until, piece.confidence))
        if piece.gpus > taken:
            rest.append(_Piece(piece.gpus - taken, piece.until, piece.confidence))
    return first, rest
