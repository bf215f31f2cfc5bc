"""`python -m worker.replicas.ranks DESCRIPTOR`: starts `rank_main`."""

from contract.processes import entry_point

if __name__ == "__main__":
    entry_point.load("worker.replicas.ranks.rank_main:main")()
