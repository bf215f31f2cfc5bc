"""Which nodes may not be given which tasks, on values alone."""

from datetime import UTC, datetime, timedelta

from service.fleet.node_health.node_faults import Fault
from service.scheduler.core.eligibility import Asker, Bar, Host, bars, burden, capability_words

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = NOW + timedelta(seconds=1)
KNOWS = frozenset({"a", "b"})


def host(name: str, **more) -> Host:
    return Host(name, f"boot of {name}", more.pop("capabilities", KNOWS), **more)


def asker(name: str, *fits: str, needs=frozenset({"a"}), **faults: Fault) -> Asker:
    return Asker(name, needs, faults, fits)


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert bars([host("n")], [asker("t", "n")], NOW) == {}


def test_what_a_node_does_not_understand_or_refused() -> None:
    refused = Fault(refused_by="boot of n", refusal="why")
    askers = [asker("new", "n", needs=frozenset({"a", "z"})), asker("refused", "n", n=refused), asker("plain", "n")]
    assert bars([host("n")], askers, NOW) == {"new": {"n": Bar.NOT_UNDERSTOOD}, "refused": {"n": Bar.REFUSED}}
    assert bars([host("n", capabilities=KNOWS | {"z"})], askers[:1], NOW) == {}
    again = Host("n", "a later boot", KNOWS)
    assert bars([again], [askers[1]], NOW) == {}


def test_a_rest_is_over_when_it_is() -> None:
    hosts = [host("n"), host("m")]
    assert bars(hosts, [asker("t", "n", "m", n=Fault(losses=2, rest_until=SOON))], NOW) == {"t": {"n": Bar.RESTING}}
    assert bars(hosts, [asker("t", "n", "m", n=Fault(losses=2, rest_until=NOW))], NOW) == {}


def test_a_node_that_is_given_nothing() -> None:
    for bar in (Bar.QUARANTINED, Bar.NOT_APPLYING, Bar.RESTING):
        assert bars([host("n", bar=bar), host("m")], [asker("t", "n"), asker("u", "m")], NOW) == {"t": {"n": bar}}


def test_a_node_under_trial_may_be_given_one_task_that_it_lost_least() -> None:
    askers = [asker("lost", "n", n=Fault(losses=1)), asker("wide"), asker("first", "n"), asker("second", "n")]
    kept = {"lost": {"n": Bar.QUARANTINED}, "second": {"n": Bar.QUARANTINED}}
    assert bars([host("n", tried=True)], askers, NOW) == kept
    assert bars([host("n", tried=True, busy=True)], askers, NOW) == kept | {"first": {"n": Bar.QUARANTINED}}
    assert bars([host("n", tried=True)], askers[:1], NOW) == {}, "better it than none"


def test_a_task_goes_where_less_was_lost() -> None:
    task = asker("t", "n", "m", n=Fault(losses=1, missed=1))
    assert burden(host("n"), task) > burden(host("m", losses=1), task) > burden(host("m"), task) == 1


def test_the_words_name_what_is_missing_and_what_it_takes() -> None:
    words = capability_words({"training.nova", "precision", "precision=int3"}, "0.3.0", {"training.nova"}, {"n": "0.2.0"})
    assert words.startswith("No node understands precision=int3, training.nova of its spec: that takes a worker of motet a ver")
    assert "a version after 0.3.0, this service's (n has 0.2.0)" in words
    assert "of motet 0.3.0 or newer (" in capability_words({"training.nova"}, "0.3.0", {"training.nova"}, {"n": "0.2.0"})
