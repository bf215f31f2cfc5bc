"""`python -m worker.data.tokenising`: tokenises the file that a command on standard input names, and exits."""

from contract.processes import entry_point

if __name__ == "__main__":
    entry_point.load("worker.data.tokenising.tokenising_main:main")()
