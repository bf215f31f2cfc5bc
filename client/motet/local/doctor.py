"""`motet doctor`: what runs, what is wrong, and how to fix it. Read-only. Knows no terminal."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from contract.gpu_counts import device_word, gpu_count
from contract.processes import reproducibility
from contract.states import TaskStatus
from contract.wording.duration_words import duration
from motet.api.client import Client
from motet.api.errors import ApiError, NoCredentials, NotMotet, Unreachable
from motet.api.resources import Node, Storage, Task

_LOSES = 3  # executors lost in a row before a GPU is named
_LOOKED_AT = 50  # tasks per status, at most

_SLOW_SECONDS = 5.0
_BACKUP_HOURS = 36  # as the alert MotetBackupOld
_STORAGE_SLOW = "uploads and downloads are as slow; look at the bucket's own measurements and the network between"
_BACKUP_OLD = "take one (`motet admin backup`), or see why the chart's CronJob failed; what came since would be lost"
_STORAGE_AWAY = "nothing is lost: workers try again; see that its server runs and that the API reaches it"
_STORAGE_REFUSES = "see MOTET_STORAGE_URL, its region and its credentials (docs/OPERATIONS.md, Storage); the API's log has more"
_TRANSFER_SECONDS = 10.0
_TRANSFERS_AWAY = (
    "see that `python -m service api` runs with MOTET_TRANSFER_PORT={port}, and that firewalls and proxies let {address} "
    "through to it (docs/OPERATIONS.md, Storage); until then what is sent there fails"
)
_WITHOUT_URL = "; without MOTET_TRANSFER_URL the API sends tenants their files itself"
_WITHOUT_PORT = "; without MOTET_TRANSFER_PORT the API sends and takes workers' objects itself"

_TROUBLES = {  # of nodes that send heartbeats, and how to fix them
    "quarantined": (
        "its worker's log tells how its executors ended; once that is mended restart the worker, or let it take tasks again "
        "with POST /v1/admin/nodes/{id}/undrain; a task that goes well there mends it too"
    ),
    "resting": "if it goes on losing executors it will be quarantined; its worker's log tells how they ended",
    "disk_full": "make room on its disk: what waits goes on by itself, and nothing of it is lost",
    "unreadable": "restart its worker, which registers them anew",
    "not_applying": "its worker hangs: restart it; its log tells more",
}


@dataclass(frozen=True)
class Finding:
    """One check's result. `mend` says what to do if it failed. `no_service`: there is none, or it refuses the key."""

    well: bool
    what: str
    mend: str = ""
    no_service: bool = False


def examine(connect: Callable[[], Client] = Client) -> Iterator[Finding]:
    """Yield findings as they are made. If the service cannot be reached, the last finding says why."""
    try:
        client = connect()
    except (NoCredentials, Unreachable) as error:
        yield Finding(False, "no service to talk to", str(error), no_service=True)
        return
    with client:
        try:
            yield from _service(client)
            yield from _storage(client)
            yield from _backup(client)
            yield from _models(client)
            yield from _nodes(client)
            yield from _tasks(client)
        except (Unreachable, NotMotet) as error:
            yield Finding(False, "no service to talk to", str(error), no_service=True)
        except ApiError as error:
            refused = error.status == 401
            yield Finding(False, f"{client.api_url} refused ({error.status} {error.code})", error.detail, no_service=refused)


def _service(client: Client) -> Iterator[Finding]:
    client.ready()
    yield Finding(True, f"{client.api_url} answers, and its database is up to date")
    next(client.tasks.list(), None)
    yield Finding(True, "the key is good")


def _storage(client: Client) -> Iterator[Finding]:
    try:
        found = client.admin.storage()
    except NoCredentials:
        return  # said of the machines
    except ApiError as error:
        if error.status != 404:  # a service of an earlier version
            raise
        return
    if found.problem is None:
        slow = f", slowly: a small object took {found.seconds:.1f} s" if found.seconds > _SLOW_SECONDS else ""
        yield Finding(not slow, f"storage at {found.address} keeps what is written to it{slow}", _STORAGE_SLOW if slow else "")
    else:
        mend = _STORAGE_AWAY if found.may_pass else _STORAGE_REFUSES
        yield Finding(False, f"storage at {found.address} does not work: {found.problem}", mend)
    yield from _transfers(found, client.api_url)


def _transfers(found: Storage, api_url: str) -> Iterator[Finding]:
    """Whether the transfer port answers: as tenants reach it, or, where only workers do, under the host of the API."""
    if found.transfer_port is None:
        return
    api = urlsplit(api_url)
    if found.transfer_url is not None:
        base, without = found.transfer_url, _WITHOUT_URL
    elif api.scheme == "http":
        host = f"[{api.hostname}]" if ":" in (api.hostname or "") else api.hostname
        base, without = f"http://{host}:{found.transfer_port}", _WITHOUT_PORT
    else:
        said = "is not tried: only workers use it, under the http:// host of their MOTET_API_URL"
        yield Finding(True, f"the transfer port {found.transfer_port} {said}")
        return
    address = f"{base}/transfers/"
    if (wrong := _no_answer(f"{address}livez")) is None:
        yield Finding(True, f"the transfer port answers at {address}")
    else:
        mend = _TRANSFERS_AWAY.format(port=found.transfer_port, address=address) + without
        yield Finding(False, f"the transfer port does not answer at {address}: {wrong}", mend)


def _no_answer(url: str) -> str | None:
    try:
        answer = httpx.get(url, timeout=_TRANSFER_SECONDS)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__
    if answer.status_code == 200 and answer.headers.get("content-type") == "application/json":
        return None
    return f"something else is there, which says {answer.status_code}"


def _backup(client: Client) -> Iterator[Finding]:
    """How old the newest backup is; none is no fault of a stack to try things on."""
    try:
        found = client.admin.newest_backup()
    except NoCredentials:
        return  # said of the machines
    except ApiError as error:
        if error.status != 404:  # a service of an earlier version
            raise
        return
    if found.taken_at is None or found.age_seconds is None:
        yield Finding(True, "no backup was ever taken: `motet admin backup FOLDER` (docs/OPERATIONS.md, Backup and restore)")
        return
    old = found.age_seconds > _BACKUP_HOURS * 3600
    said = f"the newest backup was taken {duration(found.age_seconds)} ago ({found.taken_at:%Y-%m-%d %H:%M} UTC)"
    yield Finding(not old, said, _BACKUP_OLD if old else "")


def _models(client: Client) -> Iterator[Finding]:
    names = [model.name for model in client.models.list()]
    if names:
        yield Finding(True, f"base models: {', '.join(names)}")
    else:
        mend = "an admin allows one: `motet demo` does so with the example's, POST /v1/admin/models with a folder of yours"
        yield Finding(False, "no base model is allowed", mend)


def _nodes(client: Client) -> Iterator[Finding]:
    try:
        nodes = list(client.admin.nodes())
    except NoCredentials:
        yield Finding(True, "the machines are not looked at: that needs an admin key (MOTET_ADMIN_KEY)")
        return
    if all(node.status in ("lost", "stopped") for node in nodes):
        mend = "`motet up` brings one along; elsewhere start `python -m worker` on it (docs/OPERATIONS.md)"
        yield Finding(False, "no machine is ready to train", mend)
    for node in nodes:
        runs = f"runs {', '.join(task.task_id for task in node.running)}" if node.running else "is idle"
        if node.status == "ready" and node.losses > 1:
            said = f"node {node.name} is ready, but lost {node.losses} placements in a row"
            yield Finding(False, said, _TROUBLES["resting"])
        elif node.status == "ready":
            yield Finding(True, f"node {node.name} is ready, has {_gpus(node)} and {runs}")
            yield from _numerics(node)
            yield from _devices(node)
        elif node.status in ("stopping", "stopped"):
            yield Finding(True, f"node {node.name} is {node.status}: its worker said so; it takes tasks once it starts again")
        elif node.status in _TROUBLES:
            yield Finding(False, f"node {node.name} is {node.status}: {node.trouble}", _TROUBLES[node.status])
        else:
            seen = f"{node.heartbeat_at:%Y-%m-%d %H:%M} UTC" if node.heartbeat_at is not None else "never"
            mend = "start its worker again; what it ran is already queued elsewhere"
            yield Finding(False, f"node {node.name} is {node.status}, last heard of {seen}", mend)


def _gpus(node: Node) -> str:
    types = Counter(device.type for device in node.devices)
    return " and ".join(gpu_count(number, type) for type, number in sorted(types.items())) or "no GPU"


def _tasks_said(number: int, one: str, several: str) -> str:
    return f"{number} task {one}" if number == 1 else f"{number} tasks {several}"


def _devices(node: Node) -> Iterator[Finding]:
    types = {device.index: device.type for device in node.devices}
    for index, lost in node.device_losses.items():
        if lost >= _LOSES and len(node.devices) > 1:
            word = device_word([types.get(index)])
            what = f"{word} {index} of node {node.name} lost {lost} executors in a row, and is taken last"
            yield Finding(False, what, "its worker's log tells how they ended; a task that goes well there mends it")


def _numerics(node: Node) -> Iterator[Finding]:
    if any(device.type == "cpu" for device in node.devices) and not reproducibility.is_on(node.versions):
        what = f"node {node.name} trains on CPUs without {reproducibility.VARIABLE}: a job's last bits depend on its neighbours"
        yield Finding(False, what, "start its worker again, from this version of Motet: `python -m worker` sets it by itself")


def _tasks(client: Client) -> Iterator[Finding]:
    running = _some(client, TaskStatus.RUNNING)
    named = f": {', '.join(task.id for task in running[:5])}" if running else ""
    yield Finding(True, f"{_tasks_said(len(running), 'runs', 'run')}{named}")
    for task in _some(client, TaskStatus.QUEUED):
        why = task.waiting.sentence if task.waiting is not None else ""
        yield Finding(True, f"{task.id} waits: {why or 'no plan has looked at it yet'}")
    stuck = _some(client, TaskStatus.VALIDATING)
    if stuck:
        mend = (
            "if this lasts, `python -m service queue` and `python -m service reconcile` are not running; look into their logs"
        )
        yield Finding(False, f"{_tasks_said(len(stuck), 'waits', 'wait')} to be validated", mend)
    for task in _some(client, TaskStatus.FAILED)[:3]:  # a failed task concerns its owner and is no fault of the service
        yield Finding(True, f"{task.id} failed: {task.error} (`motet jobs {task.id}` says what became of each configuration)")


def _some(client: Client, status: TaskStatus) -> list[Task]:
    return [task for _, task in zip(range(_LOOKED_AT), client.tasks.list(status), strict=False)]
