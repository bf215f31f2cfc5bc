"""`python -m worker.hosts`: the agent of a further host of a node."""

import sys

from worker.hosts.host_agent import main

if __name__ == "__main__":
    sys.exit(main())
