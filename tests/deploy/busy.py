"""A child with a grandchild in a session of its own. Writes both process ids to the file it is given, then waits for ever.

`obeys`: ends when asked to. `stubborn`: does not. `dies`: ends by itself with exit code 3.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    place, mood = Path(sys.argv[1]), sys.argv[2]
    if mood == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    draft = place.with_suffix(".new")
    draft.write_text(f"{os.getpid()} {grandchild.pid}")
    draft.rename(place)
    if mood == "dies":
        print("the reason is written here", flush=True)
        sys.exit(3)
    signal.pause()
