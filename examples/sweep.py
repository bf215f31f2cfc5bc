"""A search from Python: upload, submit, follow, look at the curves, download the best adapter.

python examples/sweep.py                      (with `motet up` running in another terminal)
"""

import argparse
from pathlib import Path

from motet import Client

RESTAURANTS = Path(__file__).parent / "restaurants"


def main() -> None:
    parser = argparse.ArgumentParser(description="Search learning rates on restaurants, and download the adapter.")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each job")
    parser.add_argument("--out", type=Path, help="folder for the adapter (default: adapters/ and its id)")
    arguments = parser.parse_args()

    with Client() as client:  # MOTET_API_URL and MOTET_API_KEY, else the stack on this machine
        train = client.files.upload(RESTAURANTS / "train.jsonl")
        validation = client.files.upload(RESTAURANTS / "validation.jsonl")
        submitted = client.tasks.create(
            {
                "name": "sweep",
                "base_model": "example-7m",
                "dataset": {"file_id": train.id, "validation_file_id": validation.id},
                "search_space": {"learning_rate": [5e-4, 2e-3, 5e-3], "rank": [8], "batch_size": [4]},
                "training": {"epochs": 1, "max_steps": arguments.steps, "max_seq_len": 256},
                "early_exit": {"policy": "alto", "warmup_fraction": 0.5, "keep_fraction": 0.34, "eval_every": 5},
            }
        )
        for task in client.tasks.follow(submitted.id):
            print(f"{task.status}: {task.progress.steps_done} steps done")

        for job in client.tasks.jobs(task.id):
            why = f" ({job.exit.reason} at step {job.exit.step})" if job.exit else ""
            print(f"lr {job.config.learning_rate:g}: {job.status}{why}, best validation loss {job.best_val_loss}")
        if task.winner is None:
            raise SystemExit(f"no adapter: {task.error or task.status}")
        for curve in client.tasks.metrics(task.id, jobs=[task.winner.index], series="val_loss"):
            print("the winner's validation losses:", dict(zip(curve.steps, curve.values, strict=True)))
        folder = arguments.out or Path("adapters", task.winner.adapter_id)
        print("saved to", client.adapters.download(task.winner.adapter_id, folder))


if __name__ == "__main__":
    main()
