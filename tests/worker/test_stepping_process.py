"""What a process that steps asks of Python, as such a process would see it."""

import subprocess
import sys

_SETTLED = """
import gc, sys
from worker.stepping_process import settle
before = sys.getswitchinterval()
settle()
print(before, sys.getswitchinterval(), gc.get_freeze_count())
"""


def test_a_step_waits_for_no_other_threads_turn_and_imports_are_not_collected():
    said = subprocess.run([sys.executable, "-c", _SETTLED], capture_output=True, text=True, check=True)
    before, after, frozen = map(float, said.stdout.split())
    assert 10 * after <= before
    assert frozen > 1000


_OPEN = """
import resource
from worker.stepping_process import settle
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
settle()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_it_may_open_as_many_files_as_its_operator_lets_it():
    """Each copy of an adapter that ranks share, or that main memory does not hold, takes one."""
    said = subprocess.run([sys.executable, "-c", _OPEN], capture_output=True, text=True, check=True)
    soft, hard = map(int, said.stdout.split())
    assert soft == hard


_FREED = """
import queue, threading
from worker.stepping_process import settle

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

def hold():
    held = [b"x" * 1_600_000 for _ in range(40)]
    del held
    done.put(None)
    threading.Event().wait()  # it stays

settle()
done, seen = queue.SimpleQueue(), [resident()]
for _ in range(6):
    threading.Thread(target=hold, daemon=True).start()
    done.get()
    seen.append(resident())
print(*seen)
"""


def test_threads_share_what_they_free():
    """A CPU executor's base is what it holds: what each of its threads keeps would be counted to it."""
    said = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)
    before, first, *_, last = map(int, said.stdout.split())
    assert last - before < 3 * (first - before), "two arenas hold it all"
