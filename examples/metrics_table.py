"""A finished task's curves as a pandas table, from its metrics.csv (job, step, losses, accuracies).

    python examples/metrics_table.py [TASK]             (left out, the newest; needs pandas: pip install pandas)

The file is a result file of the OpenAI-compatible face, so that SDK fetches it.
"""

import argparse
import io
import sys
from pathlib import Path

import pandas

sys.path.insert(0, str(Path(__file__).parent))
from with_openai_sdk import connect


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a task's metrics.csv with pandas.")
    parser.add_argument("task", nargs="?", help="a task's id")
    task = parser.parse_args().task
    client = connect()
    if task is None:
        task = next(job.id for job in client.fine_tuning.jobs.list() if job.status == "succeeded")
    metrics = pandas.read_csv(io.BytesIO(client.files.content(f"result-metrics-{task}").content))
    by_job = metrics.groupby("job")
    best = by_job.agg(steps=("step", "max"), last_train=("train_loss", "last"), best_valid=("valid_loss", "min"))
    print(best.sort_values("best_valid").to_string())
    winner = metrics[metrics["job"] == best["best_valid"].idxmin()]
    smooth = winner["train_loss"].rolling(5, min_periods=1).mean().round(3)
    print(f"the winner's training loss, smoothed: {smooth.tolist()}")


if __name__ == "__main__":
    main()
