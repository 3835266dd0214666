"""Which servers may be used, and how their addresses are shown."""

import pytest

from judges.errors import UpliftError
from workers.__main__ import node_name
from workers.process.celery_app import celery_url
from workers.store.keys import InvalidBroker, checked_broker, redacted
from workers.store.process_settings import from_environment


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://localhost",
        "redis://[::1]:6379",
        "redis://:secret@queue.internal:6379/0",
        "rediss://queue.internal:6380",
        "unix:///tmp/s.sock",
    ],
)
def test_servers_that_may_be_used(url):
    assert checked_broker(url) == url


def test_a_server_on_another_machine_needs_a_password_or_tls():
    with pytest.raises(InvalidBroker, match="without password or TLS"):
        checked_broker("redis://queue.internal:6379/0")
    assert checked_broker("redis://queue.internal:6379/0", insecure=True)


@pytest.mark.parametrize(
    "url", ["", "queue:6379", "amqp://x", "redis://", "unix://", "redis://h:99999", "memory://"]
)
def test_addresses_that_name_no_server_are_refused(url):
    with pytest.raises(InvalidBroker):
        checked_broker(url)


def test_a_password_is_never_shown():
    assert redacted("redis://:s3cret@host:1/0") == "redis://:***@host:1/0"
    assert redacted("redis://user:s3cret@host") == "redis://user:***@host"
    with pytest.raises(InvalidBroker) as refused:
        checked_broker("amqp://u:s3cret@host")
    assert "s3cret" not in str(refused.value)


def test_celery_gets_sockets_in_its_own_spelling():
    assert celery_url("unix:///tmp/a.sock") == "redis+socket:///tmp/a.sock?virtual_host=0"
    assert celery_url("redis://h/1") == "redis://h/1"


def test_celery_verifies_a_tls_broker_unless_told_otherwise():
    assert celery_url("rediss://h/1") == "rediss://h/1?ssl_cert_reqs=required"
    assert celery_url("rediss://h/1?ssl_ca_certs=/a") == "rediss://h/1?ssl_ca_certs=/a&ssl_cert_reqs=required"
    assert celery_url("rediss://h/1?ssl_cert_reqs=none") == "rediss://h/1?ssl_cert_reqs=none"


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_worker_refuses_a_number_that_is_none(value):
    with pytest.raises(ValueError, match="UPLIFT_IN_FLIGHT"):
        from_environment({"UPLIFT_IN_FLIGHT": value})


@pytest.mark.parametrize("value", ["0", "0.5", "-30", "nan", "inf", "1e9", "half a minute"])
def test_a_lease_that_makes_no_sense_is_refused_in_one_line(value):
    """With one of 0 seconds every claim would have run out, and every call be made twice."""
    with pytest.raises(UpliftError, match=f"UPLIFT_LEASE_SECONDS is '{value}'; give seconds from 1"):
        from_environment({"UPLIFT_LEASE_SECONDS": value})
    assert from_environment({"UPLIFT_LEASE_SECONDS": "", "UPLIFT_DRAIN_SECONDS": "0"}).lease_seconds == 30.0


def test_a_password_among_the_parameters_of_an_address_is_not_shown_either():
    assert redacted("unix:///s?db=1&password=s3cret") == "unix:///s?db=1&password=***"


def test_flower_tells_workers_of_one_host_name_and_process_number_apart():
    one, other = node_name("host:7-aaaa"), node_name("host:7-bbbb")
    assert one.startswith("uplift-7-aaaa@")
    assert other.startswith("uplift-7-bbbb@")


def test_an_empty_variable_is_as_good_as_none():
    empty = dict.fromkeys(("UPLIFT_IN_FLIGHT", "UPLIFT_LEASE_SECONDS"), "")
    assert from_environment(empty) == from_environment({})
