"""Settings: environment variables that start with MOTET_. Knows no other source and no default secrets."""

import sys
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from contract.messages.node_messages import JoinName
from contract.values.redis_url import RedisUrl
from service.database.timeouts import Timeouts
from service.setting_types import (
    DIFFERENT,
    MIB,
    DatabaseUrl,
    Days,
    HttpUrlText,
    Issuer,
    Limit,
    Network,
    Networks,
    OtlpEndpoint,
    OtlpHeaders,
    Port,
    Seconds,
    Secret,
    SmtpUrl,
    StorageUrl,
    Wait,
    WebhookSecret,
    WebhookUrl,
    header_fields,
    is_loopback,
    listed,
    networks_or_none,
    state_home,
    wrong_variable,
)
from service.storage_settings import StorageSettings


class SettingsError(RuntimeError):
    """A variable is missing or wrong. The message is written for the operator."""


class Settings(StorageSettings):
    """Sizes are in bytes, durations in seconds."""

    # an empty variable counts as left out: docker-compose.yml passes on what is not set
    model_config = SettingsConfigDict(
        env_prefix="MOTET_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    database_url: DatabaseUrl  # as the role motet_system
    app_database_url: DatabaseUrl  # as the role motet_app, subject to row-level security
    owner_database_url: DatabaseUrl | None = None  # only `migrate` uses it
    redis_url: RedisUrl
    secret_key: Secret  # signs placement tokens and upload grants, encrypts secrets that must be read back
    secret_keys_before: Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(listed)] = ()  # they only decrypt
    join_token: Secret | None = None  # `bootstrap` registers it; each of `join_nodes` may join with it
    join_nodes: Annotated[tuple[JoinName, ...], NoDecode, BeforeValidator(listed)] = ()
    metrics_token: Secret | None = None  # Prometheus's bearer token for /metrics, instead of an admin key
    backup_url: StorageUrl | None = None  # where `backup` keeps copies, and what `restore` reads
    backup_name: Annotated[str, Field(pattern=r"^[0-9TZ-]{16,32}$")] | None = None  # that `restore` takes; left out, the newest
    backups_kept: Limit = 14  # of which older ones are removed
    pg_programs: Path | None = None  # the folder of pg_dump and pg_restore; left out, the wheel or PATH has them
    state_dir: Path = Field(default_factory=state_home)
    liveness_file: Path | None = None  # that queue and reconcile touch as they go on, for a probe that restarts a hung one
    host: str = "127.0.0.1"
    port: Port = 8321
    internal_port: Port | None = None  # of the API that workers call; None: the public port serves it
    api_processes: Annotated[int, Field(ge=1, le=16)] = 1

    # proxies whose X-Forwarded-For is trusted; `none`: callers connect directly
    trusted_proxies: Annotated[tuple[Network, ...] | None, NoDecode, BeforeValidator(networks_or_none)] = None

    statement_timeout_seconds: Wait = 15  # of a request; a longer statement answers 503
    lock_timeout_seconds: Wait = 10
    idle_transaction_seconds: Wait = 60
    work_statement_timeout_seconds: Wait = 300  # of the queue worker and the reconciler, which also plan and delete
    migration_statement_timeout_seconds: Wait = 3600
    migration_lock_timeout_seconds: Wait = 3  # a waiting migration blocks every later query on the table

    public_url: HttpUrlText | None = None  # where users open the dashboard; left out, as each request names it
    # sign-in by OpenID Connect; without an issuer, by keys alone
    oidc_issuer: Issuer | None = None
    oidc_client_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    oidc_client_secret: SecretStr | None = None  # left out: a public client
    oidc_name: Annotated[str, Field(min_length=1, max_length=64)] | None = None  # "Sign in with ...": else the issuer's host
    personal_key_days: Annotated[float, Field(gt=0, le=3650)] = 90  # of a member's key, at most
    sign_in_key_days: Annotated[float, Field(gt=0, le=3650)] = 30  # of the key that `motet login --sso` gets
    session_hours: Annotated[float, Field(gt=0, le=24 * 30)] = 12  # of a signed-in browser; its key may end it before
    gpu_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # that estimates and usage show
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"

    heartbeat_seconds: Seconds = 10
    lease_seconds: Seconds = 90
    reconcile_seconds: Seconds = 5
    stall_seconds: Seconds = 120
    quarantine_seconds: Seconds = 60  # a node's first quarantine, after it lost three placements in a row
    fair_share_half_life_seconds: Seconds = 4 * 3600  # of the decaying usage
    base_bytes_per_second: Annotated[float, Field(ge=1e3, le=1e12)] = 62.5e6  # expected of a download until a node measured one
    preempt_after_seconds: Seconds = 600  # how long a tenant under its share waits before it preempts
    preempt_for_shorter_tasks: bool = True  # pause a running task for a much shorter one

    requests_per_minute: Limit = 30_000  # per key that has no limit of its own
    estimates_per_minute: Limit = 120  # per tenant: an estimate plans the whole fleet once
    completion_requests_at_once: Limit = 16  # of a tenant
    completion_tokens_per_minute: Limit = 100_000  # of a tenant: prompts, and what is generated or may be
    completion_max_tokens: Annotated[int, Field(ge=1, le=32_768)] = 2048  # of one choice
    completion_wait_seconds: Wait = 60  # until an executor takes a request
    completion_seconds: Wait = 600  # of a request from its arrival to its end
    completion_idle_seconds: Wait = 120  # without a request, after which an executor that answers alone is let go
    completion_sessions_at_once: Limit = 2  # executors that are held to answer a tenant's requests alone
    openai_id_prefixes: bool = True  # /openai/v1 writes ftjob-… and file-…; off while older API processes answer
    failed_authentications_per_minute: Limit = 60  # per address; beyond it, unknown credentials are not looked up
    retention_days: Days = 30  # how long a deleted task's curves, events and adapters stay
    plan_history_days: Days = 90  # each task's planned times
    plan_days: Days = 7  # plans with their reasons,
    plans_kept: Limit = 1000  # of which at most this many, the newest
    delivery_days: Days = 30  # webhook messages
    placement_days: Days = 90  # placements of ended tasks; their usage stays
    node_days: Days = 7  # without a heartbeat, after which a node is removed from the list
    audit_days: Days = 365
    merged_model_days: Days = 30  # from when it is ready; adapters stay
    webhook_networks: Networks = ()  # allowed though not public
    grader_networks: Networks = ()  # of endpoint graders, as above
    grader_seconds: Annotated[float, Field(ge=1, le=600)] = 60  # until a grader's endpoint has answered
    tracking_networks: Networks = ()  # of tenants' tracking servers, as above
    smtp_url: SmtpUrl | None = None  # smtp+starttls://user:password@host, smtps://… or smtp://…; left out, no e-mail
    smtp_from: str | None = None  # left out, motet@ the server's host
    otlp_endpoint: OtlpEndpoint | None = None  # OpenTelemetry's collector, to which /v1/traces is appended; left out, no traces
    otlp_headers: OtlpHeaders | None = None  # of each request to it: name=value,name=value
    autoscaling_url: WebhookUrl | None = None  # told of GPUs that are missing and of idle nodes; any network
    autoscaling_secrets: Annotated[tuple[WebhookSecret, ...], NoDecode, BeforeValidator(listed)] = ()  # each signs
    autoscaling_settle_seconds: Wait = 30  # after which a change is told, if it lasts
    # the hub of base models; huggingface_hub's own variables, which nodes read too
    hf_endpoint: HttpUrlText = Field(default="https://huggingface.co", validation_alias="HF_ENDPOINT")
    hf_token: SecretStr | None = Field(default=None, validation_alias="HF_TOKEN")
    hf_hub_offline: bool = Field(default=False, validation_alias="HF_HUB_OFFLINE")  # no call to the hub
    hub_networks: Networks = ()  # that the hub may redirect to
    import_networks: Networks = ()  # of https:// sources, as above
    import_seconds: Annotated[float, Field(ge=1, le=86_400)] = 3600  # of one attempt to import a file
    max_file_bytes: Limit = 1024 * MIB
    max_adapter_bytes: Limit = 4096 * MIB  # of uploaded weights; rank 256 of an 8B base in float32 has 2.7 GB
    max_file_rows: Limit = 1_000_000
    max_line_bytes: Limit = 4 * MIB

    @model_validator(mode="after")
    def _sign_in_is_whole(self) -> Self:
        if self.oidc_issuer is None:
            if self.oidc_client_id is not None or self.oidc_client_secret is not None:
                raise ValueError("MOTET_OIDC_CLIENT_ID and MOTET_OIDC_CLIENT_SECRET need MOTET_OIDC_ISSUER")
            return self
        if self.oidc_client_id is None:
            raise ValueError("MOTET_OIDC_ISSUER needs MOTET_OIDC_CLIENT_ID, as the provider registered this service")
        if self.public_url is None:
            raise ValueError("MOTET_OIDC_ISSUER needs MOTET_PUBLIC_URL: the provider redirects to its /oidc/callback")
        return self

    @model_validator(mode="after")
    def _autoscaling_is_signed(self) -> Self:
        if (self.autoscaling_url is None) != (not self.autoscaling_secrets):
            raise ValueError("MOTET_AUTOSCALING_URL and MOTET_AUTOSCALING_SECRETS need each other")
        return self

    @model_validator(mode="after")
    def _leases_outlast_heartbeats(self) -> Self:
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                f"MOTET_LEASE_SECONDS ({self.lease_seconds:g}) must be at least twice "
                f"MOTET_HEARTBEAT_SECONDS ({self.heartbeat_seconds:g}), or one late heartbeat ends a lease"
            )
        return self

    @model_validator(mode="after")
    def _safe_beyond_this_machine(self) -> Self:
        """A host that other machines can reach needs `trusted_proxies` set, a Redis password, and random secrets."""
        if is_loopback(self.host):
            return self
        wrong = []
        if self.trusted_proxies is None:
            wrong.append(
                "MOTET_TRUSTED_PROXIES must name the networks of the proxy that ends TLS, such as 10.0.0.0/8, "
                "or be none where callers come without one"
            )
        if not self.redis_url.startswith("unix://") and not urlsplit(self.redis_url).password:
            wrong.append("MOTET_REDIS_URL needs a password")
        for name, secret in (("MOTET_SECRET_KEY", self.secret_key), ("MOTET_JOIN_TOKEN", self.join_token)):
            if secret is not None and len(set(secret.get_secret_value())) < DIFFERENT:
                wrong.append(f"{name} looks made up; make one with: python -c 'import secrets; print(secrets.token_hex(32))'")
        if wrong:
            raise ValueError(f"MOTET_HOST is {self.host}, which others can reach: {'; '.join(wrong)}")
        return self

    @model_validator(mode="after")
    def _ports_and_nodes_agree(self) -> Self:
        taken = {self.port: "MOTET_PORT"}
        for name, port in (("MOTET_INTERNAL_PORT", self.internal_port), ("MOTET_TRANSFER_PORT", self.transfer_port)):
            if port in taken:
                raise ValueError(f"{name} must be another than {taken[port]} ({port}), or be left out")
            taken |= {port: name} if port is not None else {}
        if self.join_nodes and self.join_token is None:
            raise ValueError("MOTET_JOIN_NODES names nodes that may join, so MOTET_JOIN_TOKEN must be set")
        return self

    @classmethod
    def load(cls) -> Self:
        """The settings of this process's environment. Raises SettingsError with one line for each wrong variable."""
        try:
            return cls()
        except ValidationError as error:
            raise SettingsError("\n".join(wrong_variable(e["loc"], e["type"], e["msg"]) for e in error.errors())) from None

    @property
    def request_timeouts(self) -> Timeouts:
        return Timeouts(self.statement_timeout_seconds, self.lock_timeout_seconds, self.idle_transaction_seconds)

    @property
    def work_timeouts(self) -> Timeouts:
        """Longer timeouts for background work: a validation reads whole files in one transaction."""
        return Timeouts(self.work_statement_timeout_seconds, 3 * self.lock_timeout_seconds, 15 * self.idle_transaction_seconds)

    @property
    def migration_timeouts(self) -> Timeouts:
        return Timeouts(
            self.migration_statement_timeout_seconds, self.migration_lock_timeout_seconds, 15 * self.idle_transaction_seconds
        )

    @property
    def secrets(self) -> list[str]:
        """Every secret value in the settings, for log redaction."""
        kept = [self.secret_key, self.join_token, self.metrics_token, self.hf_token, self.oidc_client_secret]
        kept += [*self.secret_keys_before, *self.autoscaling_secrets, self.smtp_url, self.otlp_headers]
        mail = self.smtp_url.get_secret_value() if self.smtp_url is not None else ""
        urls = [self.database_url, self.app_database_url, self.owner_database_url or "", self.redis_url, mail]
        passwords = [urlsplit(url).password for url in urls]
        sent = header_fields(self.otlp_headers).values() if self.otlp_headers is not None else ()
        told = [said for one in passwords if one for said in (one, unquote(one))]
        return [secret.get_secret_value() for secret in kept if secret] + told + [*sent]

    @property
    def api_url(self) -> str:
        """The API's URL for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"


def say(line: str) -> None:
    """Print a line for the operator on stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """Print why this process stops, as plain lines on stderr."""
    for line in message.splitlines():
        sys.stderr.write(f"motet: {line}\n")
