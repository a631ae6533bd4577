import asyncio
import random
import socket
from contextlib import asynccontextmanager

from rollmill.engines.channel import Channel
from rollmill.engines.messages import Ended, Fault, Lease, read_order, read_report
from rollmill.store.schema import Entry
from rollmill.types import Slot

SLOT = Slot("agent", "abc")


class Ear:
    """What one end has heard, and whether the other has gone."""

    def __init__(self):
        self.heard: list[bytes] = []
        self.gone = asyncio.Event()

    async def hears(self, count: int):
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                await asyncio.sleep(0.001)
        return self.heard


@asynccontextmanager
async def joined():
    """A channel to write to, its own ear, and the one at the other end with its channel."""
    ears, channels = (Ear(), Ear()), []
    for ear, end in zip(ears, socket.socketpair(), strict=True):
        end.setblocking(False)
        make = lambda ear=ear: Channel(ear.heard.append, ear.gone.set)  # noqa: E731
        _, channel = await asyncio.get_running_loop().create_connection(make, sock=end)
        channels.append(channel)
    yield channels[0], ears[0], channels[1], ears[1]
    for channel, ear in zip(channels, ears, strict=True):
        channel.abort()
        await ear.gone.wait()


def lease(number: int, row: bytes = b"{}") -> Lease:
    return Lease(number, SLOT, 1, row)


def framed(*messages: Lease) -> bytes:
    """The bytes that a channel makes of messages."""

    class Wire:
        sent = b""

        def write(self, data):
            self.sent += data

        def is_closing(self):
            return False

    channel, wire = Channel(lambda _: None, lambda: None), Wire()
    channel.connection_made(wire)
    for message in messages:
        channel.send(message)
    channel.flush()
    return wire.sent


async def test_messages_cut_anywhere_arrive_whole_and_in_order():
    sent = [lease(number, b"x" * (number * 37 % 300)) for number in range(50)]
    stream = framed(*sent)
    for seed in range(50):
        chance, heard = random.Random(seed), []
        channel = Channel(heard.append, lambda: None)
        cuts = sorted(chance.randrange(len(stream)) for _ in range(seed * 4))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            channel.data_received(stream[start:end])
        assert [read_order(message) for message in heard] == sent


async def test_a_byte_at_a_time_is_enough():
    heard = []
    channel = Channel(heard.append, lambda: None)
    for byte in framed(lease(1, b"row"), lease(2)):
        channel.data_received(bytes([byte]))
    assert [read_order(message).number for message in heard] == [1, 2]


async def test_many_messages_of_one_turn_leave_in_one_write():
    async with joined() as (channel, _, _, ear):
        for number in range(2000):
            channel.send(lease(number))
        await ear.hears(2000)
    assert [read_order(message).number for message in ear.heard] == list(range(2000))


async def test_a_row_of_sixty_megabytes_arrives_between_small_ones():
    row = random.Random(1).randbytes(60_000_000)
    async with joined() as (channel, _, _, ear):
        for number, content in enumerate((b"first", row, b"last")):
            channel.send(Ended(number, Entry(SLOT, "done"), content, b"null"))
        await ear.hears(3)
    assert [read_report(message).row for message in ear.heard] == [b"first", row, b"last"]


async def test_both_ends_speak_at_once_more_than_the_socket_holds():
    big = b"y" * 3_000_000
    async with joined() as (one, ear_of_one, other, ear_of_other):
        for number in range(5):
            one.send(lease(number, big))
            other.send(lease(number, big))
        await asyncio.gather(ear_of_one.hears(5), ear_of_other.hears(5))


async def test_what_was_sent_before_the_end_is_heard_before_it():
    async with joined() as (channel, _, _, ear):
        channel.send(lease(1, b"z" * 5_000_000))
        channel.close()
        channel.send(lease(2))
        async with asyncio.timeout(10):
            await ear.gone.wait()
    assert [read_order(message).number for message in ear.heard] == [1]


async def test_a_reader_that_reads_nothing_does_not_hold_up_an_abort():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ear = Ear()
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(lambda: Channel(ear.heard.append, ear.gone.set), sock=ours)
    channel.send(lease(1, b"z" * 5_000_000))
    channel.close()
    await asyncio.sleep(0.01)
    assert not ear.gone.is_set()
    channel.abort()
    async with asyncio.timeout(10):
        await ear.gone.wait()
    theirs.close()


async def test_every_report_says_what_it_is():
    entry = Entry(SLOT, "done", reward=0.5, metrics={"exact": 1.0}, seconds={"play": 0.25})
    for report in (Ended(3, entry, b'{"a": 1.50}', b"null"), Fault("outage", "gone", 7)):
        heard = []
        Channel(heard.append, lambda: None).data_received(framed(report))
        assert read_report(heard[0]) == report
