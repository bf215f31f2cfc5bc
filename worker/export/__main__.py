"""`python -m worker.export`: starts `merge_main`."""

from contract.processes import entry_point

if __name__ == "__main__":
    entry_point.load("worker.export.merge_main:main")()
