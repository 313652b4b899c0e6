"""Stands beside one program of a lease, and outlives the scheduler: starts it, watches it, ends it, writes what it saw.

Run as `python -I -S shim.py FOLDER RANK` with nothing but the standard library, so that it starts in a few
milliseconds. FOLDER is the lease's: `placement.json` says what to run, `stop.json` and `halt.json` ask for the end.
FOLDER/RANK is this program's own: `claim`, `started.json`, `progress.json`, `log.txt`, `exit.json`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

MARK = b"GPUJOB_PROGRESS"  # jobs/progress.py reads such lines; here they only get their times
POLL_S = 0.25  # a signal wakes the shim at once; this bounds the age of progress
CHUNK = 1 << 20
BACKLOG = 16 << 20  # of unread output; beyond it the older part is skipped
WAKE = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
TERMINATED = 128 + signal.SIGTERM


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from a later one with the same number."""
    return {"pid": pid, "start": start_ticks(pid), "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


def start_ticks(pid: int) -> int:
    """When the process began, in ticks since boot. Source: proc(5), field 22 of stat."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def write(path: Path, plain: Mapping[str, Any], *, once: bool = False) -> bool:
    """The file is there whole or not at all; False if it was there and is to be written once."""
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    with whole.open("w", encoding="utf-8") as file:
        json.dump(plain, file)
        file.flush()
        os.fsync(file.fileno())
    if not once:
        whole.replace(path)
        return True
    try:
        os.link(whole, path)
    except FileExistsError:
        return False
    finally:
        whole.unlink()
    return True


def read(path: Path) -> dict[str, Any] | None:
    """What the file says; None if there is none."""
    try:
        plain: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return plain


class Progress:
    """Follows the log and stamps its lines of progress."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        self.target = folder / "progress.json"
        self.read_to = 0
        self.rest = b""
        self.seen: dict[str, Any] = {"line": "", "first_at": None, "saved_at": None, "kept": {}}

    def follow(self) -> None:
        """Read what is new."""
        changed = False
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size - self.read_to > BACKLOG:
                self.read_to, self.rest = size - CHUNK, b""
            file.seek(self.read_to)
            while chunk := file.read(CHUNK):
                self.read_to += len(chunk)
                lines = (self.rest + chunk).split(b"\n")
                self.rest = lines.pop()[-CHUNK:]
                for line in lines:
                    changed = self.take(line) or changed
        if changed:
            try:
                write(self.target, self.seen)
            except OSError:
                return  # a full disk must not end the watch; the next line tries again

    def take(self, line: bytes) -> bool:
        """Whether the line is one of progress."""
        words = line.decode(errors="replace").split() if MARK in line else []
        if len(words) < 2 or words[0].encode() != MARK or not 0.0 <= number(words[1]) <= 1.0:
            return False
        now = time.time()
        self.seen["line"] = " ".join(words)
        self.seen["first_at"] = self.seen["first_at"] or now
        kept = self.seen["kept"]
        for word in words[2:]:
            key, _, value = word.partition("=")
            if key == "saved_step" and not number(value) <= number(kept.get(key, "-inf")):
                self.seen["saved_at"] = now
            if key in ("saved_step", "from_step"):
                kept[key] = value
        return True


def number(text: str) -> float:
    """The number, or one that compares to nothing."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


class Program:
    """The program and all that it started."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.lease = folder
        self.folder = folder / str(rank)
        self.pid = 0
        self.inherit: Collection[str] = ()
        self.stop_seen: float | None = None  # on the monotonic clock
        self.grace_s = float("inf")
        self.killed = False
        self.message = ""

    def start(self, order: Mapping[str, Any], inherit: Collection[str]) -> str:
        """Start it in a session and process group of its own; a sentence if that cannot be."""
        self.inherit = inherit
        go_out, go_in = os.pipe()
        no_out, no_in = os.pipe()
        log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go_in)
            self.become(order, go_out, no_in, log)
        for handle in (go_out, no_in, log):
            os.close(handle)
        os.write(go_in, b"1")
        os.close(go_in)
        with os.fdopen(no_out, "rb") as answer:
            return answer.read().decode(errors="replace")  # ends when the program begins: exec closes its end

    def become(self, order: Mapping[str, Any], go: int, refusal: int, log: int) -> None:
        """In the child: leave word who it is, then turn into the program."""
        try:
            os.setsid()
            write(self.folder / "started.json", {**identity(os.getpid()), "at": time.time()})
            # Without this, a shim killed here would leave a program that nobody knows.
            if os.read(go, 1) != b"1":
                os._exit(TERMINATED)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(order["cwd"])
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec keeps what is ignored
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            command = order["command"]
            os.execvpe(command[0], command, self.environment(order))  # noqa: S606 - a list, no shell
        except OSError as error:
            what = error.filename if isinstance(error.filename, str) else order["command"][0]
            os.write(refusal, f"cannot start {order['command'][0]}: {what}: {error.strerror}".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
        finally:
            os._exit(126)

    def environment(self, order: Mapping[str, Any]) -> dict[str, str]:
        """What the order says, and what the scheduler passed on without writing it down."""
        # Not all of ours: Python adds LC_CTYPE to it.
        passed = {name: os.environ[name] for name in self.inherit if name in os.environ}
        return {**passed, **order["env"]}

    def watch(self, progress: Progress) -> int:
        """Until it ends: how it did, as `waitpid` says it."""
        while True:
            woken = signal.sigtimedwait(WAKE, min(POLL_S, self.grace_left()))
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            self.reap()
            if woken is not None and woken.si_signo == signal.SIGTERM:
                self.signal(signal.SIGTERM)
            self.obey()
            progress.follow()

    def obey(self) -> None:
        """SIGTERM once it is asked to stop, SIGKILL when the grace is over."""
        asked = read(self.lease / "stop.json") or read(self.lease / "halt.json")
        if asked is None:
            return
        now = time.monotonic()
        if self.stop_seen is None:
            self.stop_seen, self.grace_s = now, asked["grace_s"]
            self.message = asked.get("why", "")
            self.signal(signal.SIGTERM)
            return
        self.grace_s = min(self.grace_s, asked["grace_s"])  # somebody may be in more of a hurry since
        if not self.killed and self.grace_left() <= 0:
            self.killed = True
            self.message = f"killed: it did not end within {self.grace_s:g} s of SIGTERM"
            self.signal(signal.SIGKILL)

    def grace_left(self) -> float:
        """Seconds until SIGKILL; forever unless it was asked to stop and still may be killed."""
        if self.stop_seen is None or self.killed:
            return float("inf")
        return max(0.0, self.stop_seen + self.grace_s - time.monotonic())

    def signal(self, number: int) -> None:
        """To its whole process group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def reap(self) -> None:
        """Collect orphans of the program that ended; never the program itself."""
        for pid in children():
            if pid != self.pid:
                os.waitpid(pid, os.WNOHANG)

    def sweep(self) -> None:
        """Kill and collect all that the program left behind, also what left its group: GPUs are free only then."""
        self.signal(signal.SIGKILL)
        while left := children():
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def children() -> list[int]:
    """Children of this process; orphans of the program are among them, since it is a subreaper."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except FileNotFoundError:
        return []  # a kernel without this list; the process group was killed all the same


def ending(code: int, message: str, *, stopped: bool) -> dict[str, Any]:
    """What `exit.json` says; a signal is 128 + its number, as in Kubernetes."""
    if code < 0:
        code = 128 - code
        message = message or f"ended by {signal.Signals(code - 128).name}"
    return {"code": code, "message": message, "stopped": stopped, "ended_at": time.time()}


def run(lease: Path, rank: int) -> None:
    """The whole life of one program; nothing if another shim has claimed it."""
    program = Program(lease, rank)
    program.folder.mkdir(parents=True, exist_ok=True)
    if not write(program.folder / "claim", identity(os.getpid()), once=True):
        return
    if (lease / "stop.json").exists():
        write(program.folder / "exit.json", ending(-signal.SIGTERM, "stopped before it began", stopped=True))
        return
    placement = read(lease / "placement.json")
    if placement is None:
        raise FileNotFoundError(lease / "placement.json")
    refused = program.start(placement["ranks"][rank], placement["inherit"])
    progress = Progress(program.folder)
    try:
        status = program.watch(progress)
    except FileNotFoundError:
        program.sweep()  # the folder was removed: nobody can know of this program any more
        return
    program.sweep()
    progress.follow()
    stopped = program.stop_seen is not None and (lease / "stop.json").exists()
    end = ending(os.waitstatus_to_exitcode(status), refused or program.message, stopped=stopped)
    keep(program.folder / "exit.json", end)


def keep(path: Path, end: Mapping[str, Any]) -> None:
    """Write the end down, however long the disk is full: until then the slots are held."""
    while path.parent.exists():
        try:
            write(path, end)
            return
        except OSError:
            time.sleep(1)


def main() -> None:
    """Entry point."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    run(Path(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
