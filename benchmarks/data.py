"""A million rows through a real executor: its peak memory, and the cost of a second placement: `python -m benchmarks.data`.

The executor is the process that a worker starts; a test fleet API serves it the file over HTTP. Rows are made from GSM8K:
prompts of one sentence and completions of one line; a smaller set is chat, which a template renders four times per row. A first
placement downloads, tokenises, maps and trains a few steps; a second one, in a new process as after a crash or a pause, finds
the tokens cached. Times run from the placement's arrival at a warm executor to its first report. The service's own check of the
file is measured in a separate process. The gate: tokens and masks of rows sampled from the whole stream equal the reader's
output for each line alone, and both placements' losses are equal.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.result_file import write_result
from contract.messages.placement_messages import BaseModelRef, JobAssignment, Placement
from contract.messages.report_messages import Attached, Report
from contract.model_revision import revision_of
from contract.rows.row_encoding import truncate
from contract.states import JobStatus
from contract.task_spec import TaskSpec
from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.fleet import JOIN_TOKEN, Fleet, Reported
from worker.boot_clock import boot_now
from worker.data.node_cache import HEADER
from worker.data.row_reader import reader_of
from worker.data.token_stream import TokenStream
from worker.pipe_messages import EXECUTOR_NEWS, Attach, PlacementEnded, Stop, Writer, read

_GSM8K = Path(__file__).parents[1] / "examples" / "gsm8k" / "train.jsonl"
_MIB = 2**20
_LEASE_SECONDS = 24 * 3600.0
_DRAWN = 2000  # rows that the gate reads again
_SPEC = {
    "base_model": "example-7m",
    "search_space": {"learning_rate": [1e-3], "rank": [8], "batch_size": [8]},
    "training": {"max_steps": 8, "max_seq_len": 128},
    "early_exit": {"policy": "none"},
}
_INTAKE = """
import sys, time
from pathlib import Path
from service.files.dataset_intake import Intake, IntakeLimits
from service.storage.upload_grants import UploadGrants
from service.storage.local_storage import LocalStorage
storage = LocalStorage(Path(sys.argv[2]), UploadGrants("x" * 32))
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
before, began = peak(), time.monotonic()
intake = Intake(storage.receive(), IntakeLimits(2**40, 10**9, 4 * 2**20))
with open(sys.argv[1], "rb") as file:
    while block := file.read(2**20):
        intake.feed(block)
rows = intake.finish().rows
print(rows, time.monotonic() - began, before, peak())
"""


@dataclass
class Placed:
    """One placement on its own executor. Memory in MiB: resident before it, at its peak, and the peak without mapped files,
    whose pages the kernel reclaims when memory is short."""

    rows: int
    seconds: float  # until its first report
    tokenise_s: float  # 0 if nothing was tokenised
    idle_rss: float
    peak_rss: float
    peak_anonymous: float
    losses: dict[int, float]


def make_rows(path: Path, count: int, chat: bool) -> None:
    """Prompt: a number and the first sentence of a GSM8K question; completion: the answer's last line."""
    known = [json.loads(line)["messages"] for line in _GSM8K.read_text().splitlines()]
    with path.open("w") as file:
        for number in range(count):
            asked, answered = (message["content"] for message in known[number % len(known)])
            prompt, completion = f"{number}: {asked.split('. ')[0]}", answered.splitlines()[-1]
            said = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
            row = {"messages": said} if chat else {"prompt": prompt + "\n", "completion": completion}
            file.write(json.dumps(row) + "\n")


class Watched:
    """Samples a process's memory until closed."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over, self.anonymous = pid, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def of(self, name: str) -> float:
        """MiB of a named counter in /proc."""
        text = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None, name
        return int(found.group(1)) / 1024

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.anonymous = max(self.anonymous, self.of("RssAnon"))


@contextmanager
def executor(fleet: Fleet, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[Any], Path]]:
    """A warm executor process, its messages, and its log."""
    environment = {
        **os.environ,
        "MOTET_API_URL": fleet.url,
        "MOTET_JOIN_TOKEN": JOIN_TOKEN,
        "MOTET_WORKER_DIR": str(folder / "worker"),
        "MOTET_NODE_NAME": "bench",
        "MOTET_WORKER_DEVICE": "cpu",
        "MOTET_WORKER_CACHE_BYTES": str(2**40),
    }
    log = folder / "executor.log"
    with log.open("wb") as said:
        words = [sys.executable, "-m", "worker.executor"]
        process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    assert process.stdout is not None
    news = read(process.stdout.fileno(), EXECUTOR_NEWS)
    try:
        next(news)  # the executor reports that it is idle
        yield process, news, log
    finally:
        process.kill()
        process.wait()


def place(fleet: Fleet, folder: Path, placement: Placement) -> Placed:
    """Run the placement to its end on its own executor."""
    attached: list[float] = []

    def heard(reported: Reported, report: Report) -> None:
        if any(isinstance(event, Attached) for event in report.events):
            attached.append(time.monotonic())

    reported, fleet.on_report = fleet.place(placement), heard
    with executor(fleet, folder) as (process, news, log):
        watched = Watched(process.pid)
        idle, began = watched.of("VmRSS"), time.monotonic()
        assert process.stdin is not None
        Writer(process.stdin).write(Attach(placement=placement, deadline=boot_now() + _LEASE_SECONDS))
        ended = next(said for said in news if isinstance(said, PlacementEnded))
        assert not ended.lost, ended.detail
        peak = watched.of("VmHWM")
        watched.close()
        Writer(process.stdin).write(Stop(seconds=0))
        found = re.search(r"are tokenised, in ([\d.]+) s", log.read_text())
    losses = {step: loss for step, loss in reported.curves[0, "train_loss"].items() if loss is not None}
    tokenised = float(found.group(1)) if found else 0.0
    rows = placement.train_file.rows
    return Placed(rows, attached[0] - began, tokenised, idle, peak, watched.anonymous, losses)


def differing(stream: TokenStream, path: Path, spec: TaskSpec) -> int:
    """How many sampled rows differ in tokens or mask from the reader's output for their line alone."""
    reader = reader_of(AutoTokenizer.from_pretrained(EXAMPLE_BASE, local_files_only=True))
    lines = path.read_bytes().splitlines()
    assert stream.rows == len(lines), "no row of these is without something to learn"
    wrong = 0
    for row in random.Random(0).sample(range(len(lines)), min(_DRAWN, len(lines))):
        ((tokens,), _) = truncate(reader.read([json.loads(lines[row])])[0], spec.training.max_seq_len)
        example = stream.example(row)
        wrong += (example.tokens.tolist(), example.loss_mask.tolist()) != (tokens.ids, tokens.learned)
    return wrong


def intake(path: Path, folder: Path) -> dict[str, float]:
    """The service's check and storage of the file: seconds, and MiB before and at the peak."""
    done = subprocess.run([sys.executable, "-c", _INTAKE, path, folder], capture_output=True, text=True, check=True)
    rows, seconds, before, peak = done.stdout.split()
    return {"rows": int(rows), "seconds": float(seconds), "idle_rss": int(before) / 1024, "peak_rss": int(peak) / 1024}


def measure(count: int, chat: bool) -> dict[str, Any]:
    """Measure both placements of `count` rows, and the service's check of the file."""
    spec = TaskSpec.model_validate({**_SPEC, "dataset": {"file_id": "file_1"}})
    base = BaseModelRef(name="example-7m", source=str(EXAMPLE_BASE), revision=revision_of(EXAMPLE_BASE))
    fleet = Fleet()
    with tempfile.TemporaryDirectory(prefix="motet-data-") as name:
        folder, path = Path(name), Path(name) / "rows.jsonl"
        make_rows(path, count, chat)
        checked = intake(path, folder / "storage")
        file = fleet.add_file("file_1", path.read_bytes())
        config = spec.jobs()[0]
        placements = [
            Placement(
                placement_id=key,
                fence=fence,
                token=f"token-{key}",
                lease_seconds=_LEASE_SECONDS,
                task_id="task_1",
                tenant_id="tenant_1",
                device_indexes=[0],
                base=base,
                train_file=file,
                validation_file=None,
                spec=spec,
                jobs=[JobAssignment(job_id="job_1", index=0, config=config, status=JobStatus.PENDING)],
            )
            for fence, key in enumerate(("first", "again"), 1)
        ]
        first, again = (place(fleet, folder, placement) for placement in placements)
        (header,) = folder.glob(f"worker/bench/tenants/tenant_1/files/*/streams/*/{HEADER}")
        kept = sum(part.stat().st_size for part in header.parent.iterdir())
        wrong = differing(TokenStream.open(header.parent), path, spec)
        size = path.stat().st_size
    fleet.close()
    assert not fleet.refused, fleet.refused
    off = max(abs(first.losses[step] - again.losses[step]) for step in range(1, 9))
    return {
        "rows": count,
        "format": "chat" if chat else "completion",
        "file_mb": size / _MIB,
        "stream_mb": kept / _MIB,
        "first": asdict(first),
        "again": asdict(again),
        "intake": checked,
        "rows_that_differ": wrong,
        "losses_off": off,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--chat-rows", type=int, default=20_000)
    options = parser.parse_args()
    rows = [measure(options.chat_rows, True), measure(options.rows, False)]
    last = rows[-1]
    worst = max(max(float(row["rows_that_differ"]), row["losses_off"]) for row in rows)
    gate = {"tolerance": 0.0, "worst_error": worst, "compared": sum(min(_DRAWN, row["rows"]) for row in rows) + 8 * len(rows)}
    gate["passed"] = worst == 0.0 and last["again"]["tokenise_s"] == 0.0
    figures = {
        "peak_rss_mb_1m_rows": max(last["first"]["peak_rss"], last["again"]["peak_rss"]),
        "peak_anonymous_mb_1m_rows": max(last["first"]["peak_anonymous"], last["again"]["peak_anonymous"]),
        "idle_rss_mb": last["first"]["idle_rss"],
        "tokenise_s": last["first"]["tokenise_s"],
        "first_s": last["first"]["seconds"],
        "again_s": last["again"]["seconds"],
        "intake_s": last["intake"]["seconds"],
        "intake_peak_rss_mb": last["intake"]["peak_rss"],
    }
    for name, value in figures.items():
        print(f"{name:28} {value:10.1f}")
    print(write_result("data", gate, figures, rows))


if __name__ == "__main__":
    main()
