"""`from motet import Client`: the service's API as Python calls, for scripts and for the command line.

    client = Client()                                  # MOTET_API_URL and MOTET_API_KEY, `motet login`, or the local stack
    file = client.files.upload("rows.jsonl")
    task = client.tasks.create({"base_model": "example-7m", "dataset": {"file_id": file.id}, "search_space": {...}})
    task = client.tasks.wait(task.id)
    client.adapters.download(task.winner.adapter_id, "my-adapter")

Knows which calls there are; `operations` has what they do, motet.api.errors what they raise. Threads may share a Client.
"""

from types import TracebackType
from typing import Self

from motet.api import credentials
from motet.api.errors import NoCredentials
from motet.api.operations import account, adapters, batches, files, fleet, tasks
from motet.api.resources import Schedule
from motet.api.sync_transport import Call, Each, Room, Transport


class Files(Room):
    """Immutable JSONL data sets."""

    upload = Call(files.upload)
    get = Call(files.file)
    list = Each(files.files)
    preview = Call(files.preview)
    delete = Call(files.delete_file)


class Tasks(Room):
    """Searches, their jobs, loss curves and events."""

    create = Call(tasks.create)
    estimate = Call(tasks.estimate)
    get = Call(tasks.task)
    list = Each(tasks.tasks)
    cancel = Call(tasks.cancel)
    pause = Call(tasks.pause)
    resume = Call(tasks.resume)
    delete = Call(tasks.delete_task)
    follow = Each(tasks.follow)
    wait = Call(tasks.wait)
    jobs = Call(tasks.jobs)
    metrics = Call(tasks.metrics)
    events = Each(tasks.events)
    plan_history = Each(tasks.plan_history)


class Batches(Room):
    """Several tasks posted together, planned for one objective."""

    create = Call(batches.create)
    estimate = Call(batches.estimate)
    get = Call(batches.batch)
    list = Each(batches.batches)
    cancel = Call(batches.cancel)


class Adapters(Room):
    """Committed adapters."""

    get = Call(adapters.adapter)
    list = Each(adapters.adapters)
    delete = Call(adapters.delete_adapter)
    download = Call(adapters.download)


class Models(Room):
    """Base models that tasks may name."""

    get = Call(fleet.model)
    list = Each(fleet.models)


class Account(Room):
    """What the tenant used and may have, its keys, its audit log."""

    usage = Call(account.usage)
    quotas = Call(account.quotas)
    audit = Each(account.audit)
    keys = Each(account.keys)
    create_key = Call(account.create_key)
    revoke_key = Call(account.revoke_key)
    sign_in_link = Call(account.sign_in_link)


class Admin(Room):
    """Calls that need the admin scope."""

    register_model = Call(fleet.register_model)
    nodes = Each(fleet.nodes)
    drain = Call(fleet.drain)
    undrain = Call(fleet.undrain)
    create_join_token = Call(fleet.create_join_token)
    tenants = Each(account.tenants)
    create_tenant = Call(account.create_tenant)
    change_tenant = Call(account.change_tenant)
    keys = Each(account.keys_of)
    create_key = Call(account.create_key_of)
    revoke_key = Call(account.revoke_key_of)
    audit = Each(account.whole_audit)


class Client:
    """One service and one key. Use it as a context manager, or call `close`.

    `service` names one that `motet login` knows, or `local`, the stack on this machine.
    """

    def __init__(
        self,
        api_url: str | None = None,
        key: str | None = None,
        admin_key: str | None = None,
        service: str | None = None,
    ) -> None:
        found = credentials.find(api_url, key, admin_key, service)
        self.api_url = found.api_url
        self._transport = Transport(found.api_url, found.key)
        self._admin = Transport(found.api_url, found.admin_key) if found.admin_key is not None else None
        self.files = Files(self._transport)
        self.tasks = Tasks(self._transport)
        self.batches = Batches(self._transport)
        self.adapters = Adapters(self._transport)
        self.models = Models(self._transport)
        self.account = Account(self._transport)

    def schedule(self) -> Schedule:
        """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
        return self._transport.run(fleet.schedule())

    def ready(self) -> None:
        """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
        self._transport.run(fleet.ready())

    @property
    def admin(self) -> Admin:
        """Calls under the admin key. Raises NoCredentials where no admin key is known."""
        if self._admin is None:
            raise NoCredentials(credentials.NO_ADMIN_KEY)
        return Admin(self._admin)

    def close(self) -> None:
        self._transport.close()
        if self._admin is not None:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
