"""A channel keeps one client for its commands, for as long as its connections live."""

from workers.process.celery_app import App
from workers.store.process_settings import ProcessSettings


def taken(channel):
    with channel.conn_or_acquire() as client:
        return client


def test_a_channel_keeps_its_client_until_its_connections_are_gone(valkey):
    with App(ProcessSettings(valkey)).connection_for_write() as connection:
        channel = connection.default_channel
        first = taken(channel)
        assert first.ping()
        assert taken(channel) is first
        channel._disconnect_pools()
        second = taken(channel)
        assert second is not first
        assert second.ping()


def test_connections_of_every_kind_have_such_channels(valkey):
    app = App(ProcessSettings(valkey))
    with (
        app.connection_for_read() as reading,
        reading.clone() as copied,
        app.connection_for_write() as writing,
    ):
        kinds = {type(one.default_channel).__module__ for one in (reading, copied, writing)}
    assert kinds == {"workers.process.celery_app"}


def test_each_channel_has_a_client_of_its_own(valkey):
    with App(ProcessSettings(valkey)).connection_for_write() as connection:
        one, other = connection.channel(), connection.channel()
        assert taken(one) is not taken(other)
