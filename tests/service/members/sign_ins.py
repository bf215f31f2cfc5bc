"""What tests of signing in share: stored users, and a browser that was refused."""

from sqlalchemy import select

from service.authentication import SESSION_COOKIE
from service.tenants.models import User
from service.web.session.provider_sign_in import COOKIE
from tests.service.members.conftest import Browser


def users(database, **of) -> list[User]:
    with database.begin() as session:
        return list(session.scalars(select(User).filter_by(**of)))


def refused(browser: Browser, answer, said: str, status: int = 403) -> None:
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert SESSION_COOKIE not in browser.cookies
    assert COOKIE not in browser.cookies  # what was under way is over
