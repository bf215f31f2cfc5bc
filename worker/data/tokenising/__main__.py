"""`python -m worker.data.tokenising`: tokenises the files that commands on standard input name, and exits
at its end."""

import sys

from contract.processes import entry_point

if __name__ == "__main__":
    # a tokenizer needs no torch, which transformers loads where it finds it: most of the time and memory that a start takes
    sys.modules["torch"] = None  # type: ignore[assignment]
    entry_point.load("worker.data.tokenising.tokenising_main:main")()
