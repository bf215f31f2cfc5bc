"""`from motet import AsyncClient`: `Client` for asyncio, with the same calls, types and errors.

    async with AsyncClient() as client:
        task = await client.tasks.get("task_1")
        async for event in client.tasks.events(task.id): ...

Files on disk are read and written on the event loop's thread, a block at a time.
"""

from types import TracebackType
from typing import Self

from motet.api import credentials
from motet.api.async_transport import AsyncCall, AsyncEach, AsyncRoom, AsyncTransport
from motet.api.errors import NoCredentials
from motet.api.operations import account, adapters, batches, files, fleet, tasks
from motet.api.resources import Schedule


class AsyncFiles(AsyncRoom):
    """Immutable JSONL data sets."""

    upload = AsyncCall(files.upload)
    get = AsyncCall(files.file)
    list = AsyncEach(files.files)
    preview = AsyncCall(files.preview)
    delete = AsyncCall(files.delete_file)


class AsyncTasks(AsyncRoom):
    """Searches, their jobs, loss curves and events."""

    create = AsyncCall(tasks.create)
    estimate = AsyncCall(tasks.estimate)
    get = AsyncCall(tasks.task)
    list = AsyncEach(tasks.tasks)
    cancel = AsyncCall(tasks.cancel)
    pause = AsyncCall(tasks.pause)
    resume = AsyncCall(tasks.resume)
    delete = AsyncCall(tasks.delete_task)
    follow = AsyncEach(tasks.follow)
    wait = AsyncCall(tasks.wait)
    jobs = AsyncCall(tasks.jobs)
    metrics = AsyncCall(tasks.metrics)
    events = AsyncEach(tasks.events)
    plan_history = AsyncEach(tasks.plan_history)


class AsyncBatches(AsyncRoom):
    """Several tasks posted together, planned for one objective."""

    create = AsyncCall(batches.create)
    estimate = AsyncCall(batches.estimate)
    get = AsyncCall(batches.batch)
    list = AsyncEach(batches.batches)
    cancel = AsyncCall(batches.cancel)


class AsyncAdapters(AsyncRoom):
    """Committed adapters."""

    get = AsyncCall(adapters.adapter)
    list = AsyncEach(adapters.adapters)
    delete = AsyncCall(adapters.delete_adapter)
    download = AsyncCall(adapters.download)


class AsyncModels(AsyncRoom):
    """Base models that tasks may name."""

    get = AsyncCall(fleet.model)
    list = AsyncEach(fleet.models)


class AsyncAccount(AsyncRoom):
    """What the tenant used and may have, its keys, its audit log."""

    usage = AsyncCall(account.usage)
    quotas = AsyncCall(account.quotas)
    audit = AsyncEach(account.audit)
    keys = AsyncEach(account.keys)
    create_key = AsyncCall(account.create_key)
    revoke_key = AsyncCall(account.revoke_key)
    sign_in_link = AsyncCall(account.sign_in_link)


class AsyncAdmin(AsyncRoom):
    """Calls that need the admin scope."""

    register_model = AsyncCall(fleet.register_model)
    nodes = AsyncEach(fleet.nodes)
    drain = AsyncCall(fleet.drain)
    undrain = AsyncCall(fleet.undrain)
    create_join_token = AsyncCall(fleet.create_join_token)
    tenants = AsyncEach(account.tenants)
    create_tenant = AsyncCall(account.create_tenant)
    change_tenant = AsyncCall(account.change_tenant)
    keys = AsyncEach(account.keys_of)
    create_key = AsyncCall(account.create_key_of)
    revoke_key = AsyncCall(account.revoke_key_of)
    audit = AsyncEach(account.whole_audit)


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
        self.files = AsyncFiles(self._transport)
        self.tasks = AsyncTasks(self._transport)
        self.batches = AsyncBatches(self._transport)
        self.adapters = AsyncAdapters(self._transport)
        self.models = AsyncModels(self._transport)
        self.account = AsyncAccount(self._transport)

    async def schedule(self) -> Schedule:
        """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
        return await self._transport.run(fleet.schedule())

    async def ready(self) -> None:
        """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
        await self._transport.run(fleet.ready())

    @property
    def admin(self) -> AsyncAdmin:
        """Calls under the admin key. Raises NoCredentials where no admin key is known."""
        if self._admin is None:
            raise NoCredentials(credentials.NO_ADMIN_KEY)
        return AsyncAdmin(self._admin)

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
