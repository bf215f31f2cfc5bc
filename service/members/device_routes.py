"""How this service signs people in, and the device flow for programs without a browser. Nobody is signed in yet here, so each
address is limited."""

from datetime import timedelta
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from contract.strict import Strict
from service.app_state import Service, State
from service.http.middleware import request_id
from service.http.problems import NotFound
from service.http.response_schemas import problems
from service.members.member_routes import MyTenant
from service.members.tenant_entry import admit, give_key, note_sign_in
from service.oidc import device_flow
from service.oidc.device_flow import DeviceCode, Pending
from service.oidc.identity import Identity
from service.oidc.provider import Provider
from service.secret_box import SecretBox
from service.tenants.auth_throttle import address_of
from service.tenants.routes import KeyResource, Label

router = APIRouter(prefix="/v1/sign-in", tags=["sign-in"], responses=problems(422))

_BEGUN_PER_MINUTE, _POLLS_PER_MINUTE = 30, 600  # of an address, which many people may share


class NoSignIn(NotFound):
    code, title = "sign_in_not_configured", "This service signs in with API keys alone"


class SignInMethods(BaseModel):
    object: Literal["sign_in"] = "sign_in"
    sso: bool = Field(description="Whether people sign in by an identity provider")
    name: str | None = Field(description="What people call the provider")


class DeviceSignIn(BaseModel):
    """Open `verification_uri`, enter `user_code` there, and poll with `handle` every `interval` seconds."""

    object: Literal["device_sign_in"] = "device_sign_in"
    handle: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = Field(description="The same, with the code entered")
    expires_in: int = Field(description="Seconds")
    interval: int = Field(description="Seconds between polls, at least")


class DevicePoll(Strict):
    handle: Annotated[str, Field(min_length=1, max_length=8192)]
    name: Label = Field(default="signed in", description="Of the key, to tell it from others")
    tenant: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="Id or name, for members of several; left out, the one of last time"
    )


class DeviceSignInResult(BaseModel):
    object: Literal["device_sign_in_result"] = "device_sign_in_result"
    status: Literal["pending", "signed_in"]
    interval: int | None = Field(default=None, description="While pending: poll again after so many seconds")
    key: KeyResource | None = Field(default=None, description="A key of the person's own, shown this once in `secret`")
    label: str | None = Field(default=None, description="Who signed in")
    tenant: MyTenant | None = None


@router.get("", operation_id="get_sign_in", summary="How people sign in here")
async def get_sign_in(service: Service) -> SignInMethods:
    return SignInMethods(sso=service.provider is not None, name=service.provider.name if service.provider else None)


@router.post(
    "/device",
    operation_id="begin_device_sign_in",
    summary="Begin to sign a program in",
    responses=problems(403, 404, 429, 503),
)
async def begin_device_sign_in(request: Request, service: Service) -> DeviceSignIn:
    provider, address = _provider(service), address_of(request)
    await service.rates.take(f"sign-in {address}", _BEGUN_PER_MINUTE, "sign-ins from this address")
    made: DeviceCode = await to_thread.run_sync(device_flow.begin, provider, _box(service), limiter=service.provider_threads)
    return DeviceSignIn(**vars(made))


@router.post(
    "/device/token",
    operation_id="poll_device_sign_in",
    summary="Ask whether the person has signed in",
    description="Once they have, the answer holds a key of theirs. Refused with 403 once they said no, or the code expired.",
    responses=problems(403, 404, 429, 503),
)
async def poll_device_sign_in(said: DevicePoll, request: Request, response: Response, service: Service) -> DeviceSignInResult:
    provider, address = _provider(service), address_of(request)
    await service.rates.take(f"sign-in poll {address}", _POLLS_PER_MINUTE, "sign-in polls from this address")
    response.headers["Cache-Control"] = "no-store"
    box = _box(service)
    found = await to_thread.run_sync(device_flow.poll, provider, box, said.handle, limiter=service.provider_threads)
    if isinstance(found, Pending):
        return DeviceSignInResult(status="pending", interval=found.interval)
    id = request_id(request.scope)
    return await to_thread.run_sync(_signed_in, service, found, said, id, limiter=service.provider_threads)


def _signed_in(service: State, identity: Identity, said: DevicePoll, request_id: str) -> DeviceSignInResult:
    lasts = timedelta(days=service.settings.sign_in_key_days)
    with service.system.begin() as session:
        user, place = admit(session, identity, tenant=said.tenant)
        key, secret, principal = give_key(session, user.id, place, said.name, lasts)
        note_sign_in(session, principal, "sign_in_program", request_id, [key.id])
        return DeviceSignInResult(
            status="signed_in",
            key=KeyResource.of(key, secret),
            label=user.label,
            tenant=MyTenant(id=place.tenant_id, name=place.name, role=place.role),
        )


def _provider(service: State) -> Provider:
    if service.provider is None:
        raise NoSignIn("No identity provider is set (MOTET_OIDC_ISSUER); ask an admin for an API key.")
    return service.provider


def _box(service: State) -> SecretBox:
    return SecretBox.of(service.settings, device_flow.PURPOSE)
