"""`from motet import AsyncClient`: `Client` for asyncio, with the same calls, types and errors.

    async with AsyncClient() as client:
        task = await client.tasks.get("task_1")
        async for event in client.tasks.events(task.id): ...

Files on disk are read and written on the event loop's thread, a block at a time.
"""

from types import TracebackType
from typing import Self

from motet.api import credentials
from motet.api.async_transport import AsyncTransport
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


class AsyncClient:
    """One service and one key. Use it as an async context manager, or await `close`.

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
        self._transport = AsyncTransport(found.api_url, found.key)
        self._admin = AsyncTransport(found.api_url, found.admin_key) if found.admin_key is not None else None
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

    async def schedule(self) -> Schedule:
        """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
        return await self._transport.run(fleet.schedule())

    async def ready(self) -> None:
        """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
        await self._transport.run(fleet.ready())

    @property
    def admin(self) -> Admin[AsyncTransport]:
        """Calls under the admin key. Raises NoCredentials where no admin key is known."""
        if self._admin is None:
            raise NoCredentials(credentials.NO_ADMIN_KEY)
        return Admin(self._admin)

    async def close(self) -> None:
        await self._transport.close()
        if self._admin is not None:
            await self._admin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
