"""Installs Motet and its dependencies into .venv, and shows progress meanwhile. Standard library alone.

First comes the pinned pip, since older versions resolve each package twice as slowly. torch and its dependencies come next,
from TORCH_INDEX too if that is set. Then everything else that constraints.txt pins, which is complete (a test checks that): so
nothing is resolved, and two processes install a half each. Byte code is compiled for the modules that Motet's processes import,
a small part of all modules; this also shows that they can be imported. Older versions of the `openai` SDK go to
.venv/sdk/VERSION, for the tests that check our OpenAI interface against each version. All output goes to .venv/install.log.
"""

import os
import re
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
STAMP = VENV / "installed"
PINS = ROOT / "constraints.txt"
OLDER_SDKS = ("1.109.1", "2.54.0")
ROOMS = (  # modules to import: those of a worker's processes and of adapter checks; and all others
    ("worker.node.daemon", "worker.node.heartbeat", "worker.executor_main", "peft"),
    (
        "service.__main__",
        "service.app",
        "service.background.queue_worker",
        "service.background.reconciler",
        "motet.cli",
        "deploy.devstack.stack",
    ),
)
_NEWS = re.compile(rb"(Collecting|Downloading|Installing|Preparing|Building) ([^ (\n]+)")
_TAIL_LINES = 15


def pin_of(package: str) -> str:
    """The line of constraints.txt for a package."""
    return next(line for line in PINS.read_text().splitlines() if line.startswith(package + "=="))


def make_venv() -> None:
    """Create a virtual environment; one whose interpreter does not work is replaced."""
    works = (
        PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )
    if not works:
        with Ticker("virtual environment"):
            venv.create(VENV, with_pip=True, clear=True)


class Ticker:
    """Shows the current activity continuously: on a terminal in one line, elsewhere a line now and then."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._start = time.monotonic()
        self._read = LOG.stat().st_size if LOG.exists() else 0
        self._terminal = sys.stdout.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Ticker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        end = "\r\033[K" if self._terminal else ""
        print(f"{end}{self._title}: {time.monotonic() - self._start:.0f} s", flush=True)

    def _run(self) -> None:
        while not self._over.wait(0.5 if self._terminal else 5):
            line = f"{self._title}: {time.monotonic() - self._start:.0f} s, {self._news()[:60]}"
            print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)

    def _news(self) -> str:
        """The log's last line about the current activity."""
        found = _NEWS.findall(LOG.read_bytes()[self._read :]) if LOG.exists() else []
        return b" ".join(found[-1]).decode(errors="replace").lower() if found else "at work"


def run(title: str, *commands: tuple[str, ...]) -> None:
    """Run these commands with the new Python concurrently, output to the log; if one fails, print the log's end and exit."""
    with LOG.open("ab") as log, Ticker(title):
        env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        processes = [
            subprocess.Popen([str(PYTHON), *command], stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
            for command in commands
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        sys.stdout.write("".join(LOG.read_text(errors="replace").splitlines(keepends=True)[-_TAIL_LINES:]))
        sys.exit(f"motet: {title} failed; all that was said is in {LOG}. Fix what it names and run the same command again.")


def install(*words: str) -> tuple[str, ...]:
    """Python arguments that make pip install something."""
    return (*("-m", "pip", "install", "--no-input", "--progress-bar", "off", "--no-compile", "--no-warn-conflicts"), *words)


def missing() -> list[str]:
    """The pins that are not installed."""
    command = [str(PYTHON), "-m", "pip", "list", "--format", "freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return without(PINS.read_text().splitlines(), listed.splitlines())


def without(pins: list[str], there: list[str]) -> list[str]:
    """The pins in these lines of constraints.txt that no installed `name==version` satisfies."""
    installed = {_key(line) for line in there}
    return [line for line in pins if "==" in line and _key(line) not in installed]


def _key(pin: str) -> tuple[str, str]:
    """Package and version of `name==version`, the name normalised; a local build label (+cpu) does not count."""
    name, _, version = pin.strip().partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]


def main() -> None:
    STAMP.unlink(missing_ok=True)
    make_venv()
    LOG.write_text("")
    run("pip", install(pin_of("pip")))
    index = os.environ.get("TORCH_INDEX")
    pins = ("--constraint", str(PINS), *(("--extra-index-url", index) if index else ()))
    run("torch", install(*pins, pin_of("torch"), "setuptools"))
    rest = missing()
    halves = (rest[::2], [*rest[1::2], "--no-build-isolation", "--editable", "."])
    run("motet and the packages", *(install("--no-deps", *half) for half in halves if half))
    imports = (("-c", f"import {', '.join(room)}") for room in ROOMS)
    apart = ("--upgrade", "--no-deps", "distro==1.9.0", "--target")
    sdks = (install(*apart, str(VENV / "sdk" / version), f"openai=={version}") for version in OLDER_SDKS)
    run("byte code, older SDKs", *imports, *sdks)
    STAMP.touch()


if __name__ == "__main__":
    main()
