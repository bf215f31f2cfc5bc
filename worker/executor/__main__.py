"""`python -m worker.executor`: starts `worker.executor_main`."""

from contract.processes import entry_point

if __name__ == "__main__":
    entry_point.load("worker.executor_main:main")()
