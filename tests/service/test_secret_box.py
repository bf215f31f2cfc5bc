"""Sealed secrets: read back under their key and purpose alone, and never said in an error."""

import pytest
from pydantic import SecretStr

from service.secret_box import SecretBox, Unsealable
from service.settings import Settings

KEY, OTHER = "k" * 32, "o" * 32


def test_a_secret_comes_back_and_is_not_in_what_is_stored():
    box = SecretBox(KEY, "webhook secret")
    sealed = box.seal("whsec_naïve")
    assert box.open(sealed) == "whsec_naïve"
    assert b"whsec" not in sealed
    assert box.seal("whsec_naïve") != sealed


@pytest.mark.parametrize("box", [SecretBox(OTHER, "webhook secret"), SecretBox(KEY, "another purpose")])
def test_another_key_or_purpose_opens_nothing(box):
    sealed = SecretBox(KEY, "webhook secret").seal("whsec_x")
    with pytest.raises(Unsealable, match="MOTET_SECRET_KEY") as refused:
        box.open(sealed)
    assert "whsec_x" not in str(refused.value)


def test_what_was_changed_on_disk_does_not_open():
    box = SecretBox(KEY, "webhook secret")
    sealed = bytearray(box.seal("whsec_x"))
    sealed[40] ^= 1
    with pytest.raises(Unsealable):
        box.open(bytes(sealed))


def test_a_key_is_replaced_without_losing_a_secret():
    sealed = SecretBox(OTHER, "webhook secret").seal("whsec_x")
    both = SecretBox(KEY, "webhook secret", earlier=[OTHER])
    assert both.open(sealed) == "whsec_x"
    assert SecretBox(KEY, "webhook secret").open(both.renew(sealed)) == "whsec_x"


def test_of_the_settings_it_opens_what_each_of_their_keys_sealed():
    settings = Settings.model_construct(secret_key=SecretStr(KEY), secret_keys_before=(SecretStr(OTHER),))
    box = SecretBox.of(settings, "webhook secret")
    for key in (KEY, OTHER):
        assert box.open(SecretBox(key, "webhook secret").seal("whsec_x")) == "whsec_x"
    assert SecretBox(KEY, "webhook secret").open(box.seal("whsec_x")) == "whsec_x"
