"""The calls of the API by resource, as methods: one list for `Client`, whose calls block, and `AsyncClient`, whose are awaited.

Knows which calls there are; `operations` has what they do, a transport carries them out.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from motet.api.async_transport import AsyncTransport
from motet.api.operations import (
    account,
    adapters,
    batches,
    completions,
    files,
    fleet,
    hub_pushes,
    members,
    merged_models,
    tasks,
    tracking_servers,
)
from motet.api.steps import Listing, Operation
from motet.api.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", Transport, AsyncTransport)


class Calls(Generic[D]):
    """Calls about one kind of resource."""

    def __init__(self, transport: D) -> None:
        self.transport: D = transport


class Call(Generic[P, T]):
    """A call with one answer."""

    def __init__(self, build: Callable[P, Operation[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, calls: Calls[Transport], owner: type[Calls[Any]]) -> Callable[P, T]: ...
    @overload
    def __get__(self, calls: Calls[AsyncTransport], owner: type[Calls[Any]]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, calls: Calls[Any], owner: type[Calls[Any]]) -> Callable[P, Any]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return calls.transport.run(self._build(*args, **kwargs))

        call.__doc__ = self._build.__doc__
        return call


class Paginated(Generic[P, T]):
    """A call with many answers, to iterate over."""

    def __init__(self, build: Callable[P, Listing[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, calls: Calls[Transport], owner: type[Calls[Any]]) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, calls: Calls[AsyncTransport], owner: type[Calls[Any]]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, calls: Calls[Any], owner: type[Calls[Any]]) -> Callable[P, Any]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return calls.transport.each(self._build(*args, **kwargs))

        call.__doc__ = self._build.__doc__
        return call


class Files(Calls[D]):
    """Immutable JSONL data sets."""

    upload = Call(files.upload)
    add = Call(files.add)
    inspect = Call(files.inspect)
    imported = Call(files.imported)
    imports = Paginated(files.imports)
    follow = Paginated(files.follow)
    wait = Call(files.wait)
    get = Call(files.file)
    list = Paginated(files.files)
    preview = Call(files.preview)
    delete = Call(files.delete_file)


class Tasks(Calls[D]):
    """Searches, their jobs, loss curves and events."""

    create = Call(tasks.create)
    estimate = Call(tasks.estimate)
    get = Call(tasks.task)
    list = Paginated(tasks.tasks)
    cancel = Call(tasks.cancel)
    pause = Call(tasks.pause)
    resume = Call(tasks.resume)
    delete = Call(tasks.delete_task)
    follow = Paginated(tasks.follow)
    wait = Call(tasks.wait)
    jobs = Call(tasks.jobs)
    mirrors = Call(tasks.mirrors)
    metrics = Call(tasks.metrics)
    evaluations = Call(tasks.evaluations)
    events = Paginated(tasks.events)
    plan_history = Paginated(tasks.plan_history)


class Batches(Calls[D]):
    """Several tasks posted together, planned for one objective."""

    create = Call(batches.create)
    estimate = Call(batches.estimate)
    get = Call(batches.batch)
    list = Paginated(batches.batches)
    cancel = Call(batches.cancel)


class Adapters(Calls[D]):
    """Committed adapters: trained here, or uploaded."""

    upload = Call(adapters.upload)
    get = Call(adapters.adapter)
    list = Paginated(adapters.adapters)
    delete = Call(adapters.delete_adapter)
    download = Call(adapters.download)


class MergedModels(Calls[D]):
    """Adapters added to their bases, as folders that are loaded without them."""

    create = Call(merged_models.create)
    get = Call(merged_models.merged_model)
    list = Paginated(merged_models.merged_models)
    follow = Paginated(merged_models.follow)
    wait = Call(merged_models.wait)
    download = Call(merged_models.download)
    delete = Call(merged_models.delete_merged_model)


class HubPushes(Calls[D]):
    """Adapters and merged models, pushed to a repository of the hub."""

    create = Call(hub_pushes.create)
    get = Call(hub_pushes.hub_push)
    list = Paginated(hub_pushes.hub_pushes)
    follow = Paginated(hub_pushes.follow)
    wait = Call(hub_pushes.wait)
    delete = Call(hub_pushes.delete_hub_push)


class TrackingServers(Calls[D]):
    """MLflow and W&B servers to which tasks are mirrored."""

    create = Call(tracking_servers.create)
    get = Call(tracking_servers.tracking_server)
    list = Paginated(tracking_servers.tracking_servers)
    change = Call(tracking_servers.change_server)
    delete = Call(tracking_servers.delete_server)


class Completions(Calls[D]):
    """Texts that a base or an adapter writes when it is asked; OpenAI's SDK has the other fields."""

    create = Call(completions.create)
    stream = Paginated(completions.stream)


class Models(Calls[D]):
    """Base models that tasks may name."""

    get = Call(fleet.model)
    list = Paginated(fleet.models)


class Account(Calls[D]):
    """What the tenant used and may have, its keys, its audit log."""

    usage = Call(account.usage)
    quotas = Call(account.quotas)
    prices = Call(account.prices)
    audit = Paginated(account.audit)
    keys = Paginated(account.keys)
    create_key = Call(account.create_key)
    revoke_key = Call(account.revoke_key)
    sign_in_link = Call(account.sign_in_link)
    me = Call(members.me)
    begin_sign_in = Call(members.begin_sign_in)
    wait_for_sign_in = Call(members.wait_for_sign_in)


class Members(Calls[D]):
    """The tenant's members, its invitations and service accounts; owners manage them."""

    list = Paginated(members.members)
    change_role = Call(members.change_role)
    remove = Call(members.remove)
    invite = Call(members.invite)
    invitations = Paginated(members.invitations)
    take_back = Call(members.take_back)
    service_accounts = Paginated(members.service_accounts)
    create_service_account = Call(members.create_service_account)
    delete_service_account = Call(members.delete_service_account)
    create_service_account_key = Call(members.create_service_account_key)


class Admin(Calls[D]):
    """Calls that need the admin scope."""

    register_model = Call(fleet.register_model)
    add_model = Call(fleet.add_model)
    upload_model = Call(fleet.upload_model)
    remove_model = Call(fleet.remove_model)
    storage = Call(fleet.storage)
    newest_backup = Call(fleet.newest_backup)
    nodes = Paginated(fleet.nodes)
    autoscaling = Call(fleet.autoscaling)
    drain = Call(fleet.drain)
    undrain = Call(fleet.undrain)
    remove_node = Call(fleet.remove_node)
    create_join_token = Call(fleet.create_join_token)
    tenants = Paginated(account.tenants)
    create_tenant = Call(account.create_tenant)
    change_tenant = Call(account.change_tenant)
    keys = Paginated(account.keys_of)
    create_key = Call(account.create_key_of)
    revoke_key = Call(account.revoke_key_of)
    set_price = Call(account.set_price)
    remove_price = Call(account.remove_price)
    audit = Paginated(account.whole_audit)
    invite = Call(members.invite_into)
    remove_member = Call(members.remove_from)
    members = Paginated(members.members_of)  # the last, since it hides the module's name
