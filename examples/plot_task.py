"""Plots a finished task: every job's validation curve, where and why jobs were stopped, the base, the best in bold.

python examples/plot_task.py [TASK] --out task.png     (left out, the newest; needs matplotlib: pip install matplotlib)
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: no window

import matplotlib.pyplot as plt
from motet import Client

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MARKS = {"underperforming": "v", "overfitting": "s", "diverging": "x"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Plot a task's validation curves with matplotlib.")
    parser.add_argument("task", nargs="?", help="a task's id")
    parser.add_argument("--out", type=Path, default=Path("task.png"), help="the picture to write: .png, .svg, .pdf")
    arguments = parser.parse_args()
    with Client() as client:
        task = client.tasks.get(arguments.task) if arguments.task else next(client.tasks.list(status="succeeded"))
        jobs = {job.index: job for job in client.tasks.jobs(task.id)}
        curves = client.tasks.metrics(task.id, series="val_loss")

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for curve in curves:
        job, best = jobs[curve.index], task.winner is not None and task.winner.index == curve.index
        colour = OKABE_ITO[curve.index % len(OKABE_ITO)]
        label = f"{curve.index}: lr {job.config.learning_rate:g}, rank {job.config.rank}, batch {job.config.batch_size}"
        axes.plot(curve.steps, curve.values, color=colour, linewidth=3 if best else 1, alpha=1 if best else 0.7, label=label)
        if job.exit is not None and curve.steps:
            axes.plot(curve.steps[-1], curve.values[-1], MARKS.get(job.exit.reason.value, "o"), color=colour)
    if task.base_val_loss is not None:
        axes.axhline(task.base_val_loss, color="grey", linestyle=":", label="the base alone")
    axes.set(xlabel="step", ylabel="validation loss, nats per token", title=task.name or task.id, yscale="log")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(arguments.out, dpi=150)
    print("saved", arguments.out)


if __name__ == "__main__":
    main()
