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
