"""Who has killed a process does not wait for ever for its end."""

import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from pydantic import SecretStr

from tests.worker.compilation.fresh_process import write_base
from tests.worker.data.token_streams import APART
from tests.worker.hanging_process import PATIENCE, hanging
from tests.worker.hosts.running_agent import SECRET
from worker import killed_process
from worker.compilation import kernel_compiler
from worker.compilation.kernel_compiler import KernelCompiler
from worker.data.tokenising.row_tokeniser import RowTokeniser
from worker.data.tokenising.tokenising_process import TokenisingProcess
from worker.hosts import host_agent
from worker.hosts.host_agent import HostAgent
from worker.hosts.host_link import connect
from worker.hosts.host_messages import ANSWERS, RANK_MODULE, HostDescription, Join, Start, Started

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(killed_process, "SECONDS", 0.1)
    monkeypatch.setattr(killed_process, "DEVICE_SECONDS", 0.1)
    caplog.set_level(logging.INFO)


def test_one_that_ends_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        assert killed_process.kill(process, "it", PATIENCE)
    assert process.returncode == -9
    assert not caplog.records


def test_kernels_are_compiled_later_where_their_process_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler, base, checks = KernelCompiler(), write_base(tmp_path, "llama"), list[int]()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(kernel_compiler, "MOST_SECONDS", 0.0)

    def compile_them() -> None:
        compiler.begin(base, GPU, [16], [False], False)(lambda: checks.append(1), lambda: None)

    with hanging() as process:
        monkeypatch.setattr(kernel_compiler, "_start", lambda order: process)
        does_end(compile_them)
        assert f"process of kernels (pid {process.pid}) was killed and has not ended" in caplog.text
        assert "could not be compiled ahead" in caplog.text
        assert len(checks) == 1
        does_end(compile_them)
        assert len(checks) == 1, "nobody waits for it again"


@pytest.mark.parametrize("stays", [True, False])
def test_rows_are_read_here_where_their_process_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: bool
) -> None:
    with hanging() as child:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", lambda *_, **__: child)
            process = TokenisingProcess(APART, yields=False)
        tokeniser = RowTokeniser()
        if stays:
            tokeniser._idle.append(process)
            does_end(tokeniser.close)
        else:
            with pytest.raises(TimeoutError):
                process.tokenise(Path("rows"), APART, Path("into"), over)
        process.end()
        assert not process.lives
        assert caplog.text.count(f"tokenises (pid {child.pid}) was killed and has not ended") == 1


def test_an_agent_leaves_a_process_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = SecretStr(SECRET)
    agent = HostAgent(secret, HostDescription(devices=[], lacking=[], agent="a"), {})
    (tmp_path / "probe").touch()
    with hanging() as process, socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(host_agent, "_started", lambda asked, end: process)
        serving = threading.Thread(target=agent.serve, args=(listener,), daemon=True)
        serving.start()
        address = "{}:{}".format(*listener.getsockname())
        node, rank = connect(address, secret), connect(address, secret)
        node.send(Join(versions={}, folder=str(tmp_path), probe="probe"))
        node.receive(ANSWERS)
        rank.send(Start(module=RANK_MODULE, environment={}))
        assert rank.receive(ANSWERS) == Started(pid=process.pid)
        (following,) = [one for one in threading.enumerate() if one.name.endswith(f":{rank.socket.getsockname()[1]}")]
        rank.close()
        following.join(PATIENCE)
        assert not following.is_alive()
        assert f"{RANK_MODULE} (pid {process.pid}) was killed and has not ended" in caplog.text
        assert f"(pid {process.pid}) ended" not in caplog.text
        node.close()
        agent.stop(listener)
        serving.join()


def over() -> None:
    raise TimeoutError


def does_end(work: object) -> None:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
