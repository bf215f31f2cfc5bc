"""`from motet import Client`: the service's API as Python calls, for scripts and for the command line.

    client = Client()                                  # MOTET_API_URL and MOTET_API_KEY, `motet login`, or the local stack
    file = client.files.upload("rows.jsonl")
    task = client.tasks.create({"base_model": "example-7m", "dataset": {"file_id": file.id}, "search_space": {...}})
    task = client.tasks.wait(task.id)
    client.adapters.download(task.winner.adapter_id, "my-adapter")

`calls` lists what can be called, motet.api.errors what is raised. Threads may share a Client.
"""

from types import TracebackType
from typing import Self

from motet.api import credentials
from motet.api.calls import (
    Account,
    Adapters,
    Admin,
    Batches,
    Completions,
    Files,
    HubPushes,
    Members,
    MergedModels,
    Models,
    Tasks,
    TrackingServers,
)
from motet.api.errors import NoCredentials
from motet.api.operations import fleet
from motet.api.resources import Schedule
from motet.api.sync_transport import Transport


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
        self.merged_models = MergedModels(self._transport)
        self.hub_pushes = HubPushes(self._transport)
        self.tracking_servers = TrackingServers(self._transport)
        self.completions = Completions(self._transport)
        self.models = Models(self._transport)
        self.account = Account(self._transport)
        self.members = Members(self._transport)

    def schedule(self) -> Schedule:
        """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
        return self._transport.run(fleet.schedule())

    def ready(self) -> None:
        """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
        self._transport.run(fleet.ready())

    @property
    def admin(self) -> Admin[Transport]:
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
