"""A sweep's steps where the host's cores are idle, and where other processes use them: passes launched kernel by kernel beside
captured ones.

    python -m benchmarks.busy_host [--commit HASH]

The executor's step of 16 adapters at batch 2 on Llama-3.2-1B's shape. Launched: as on chips that are not among the fastest,
which capture passes of up to 4,096 tokens alone. The others are as many processes as there are cores, each of which computes
without end.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.consecutive_steps import consecutive_steps
from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, Rows, random_backbone
from benchmarks.pass_timing import new_trainer
from benchmarks.result_file import write_result
from worker.model.cuda.device_trainer import GRAPH_TOKENS

ADAPTERS, BATCH = 16, 2
ARENA_ROWS = 37 * ADAPTERS + 192  # ranks of 16, 32, 64 in turn, and room to attach more


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core has a process beside this one that computes meanwhile."""
    with ExitStack() as started:
        for _ in range(os.cpu_count() or 1):
            other = started.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            started.callback(other.kill)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="what the result file names, where this is no checkout")
    options = parser.parse_args()
    gate = run_gate()
    backbone, reader = random_backbone(LLAMA_1B), Rows(LLAMA_1B.vocabulary)
    rows = []
    for host in ("idle", "busy"):
        for passes in ("launched", "captured"):
            trainer = new_trainer(backbone, ARENA_ROWS)
            if passes == "launched":
                trainer.graph_tokens = GRAPH_TOKENS
            with busy_cores() if host == "busy" else ExitStack():
                row = consecutive_steps(trainer, reader, BATCH, ADAPTERS)
            rows.append(row | {"host": host, "passes": passes, "graphs": len(trainer.captured)})
            print(rows[-1], flush=True)
            del trainer
    ms = {(row["host"], row["passes"]): row["step_ms"] for row in rows}
    figures = {f"step_ms_{passes}_{host}": value for (host, passes), value in ms.items()}
    figures |= {f"x_captured_{host}": ms[host, "launched"] / ms[host, "captured"] for host in ("idle", "busy")}
    print(figures, write_result("busy_host", gate, figures, rows, options.commit))


if __name__ == "__main__":
    main()
