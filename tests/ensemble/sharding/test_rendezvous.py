"""Processes meet, or each hears in one line why not: real sockets, a thread for each process."""

import json
import socket
import threading
import time

import pytest
from conftest import free_port

from ensemble.errors import PeerLost, UserError
from ensemble.sharding.rendezvous import Peer, meet

SETTINGS = {"seed": 0, "model": "cnn"}


def outcomes(peers, seconds=10.0, address=None, delays=None):
    """What each of the processes hears: None, or the message of its error."""
    address = address or f"127.0.0.1:{free_port()}"
    heard = [None] * len(peers)

    def take_part(i, peer):
        time.sleep(delays[i] if delays else 0)
        try:
            meet(address, peer, seconds)
        except (UserError, PeerLost) as error:
            heard[i] = str(error)

    threads = [threading.Thread(target=take_part, args=each) for each in enumerate(peers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def test_processes_that_agree_go_on():
    assert outcomes([Peer(k, 4, SETTINGS) for k in range(4)]) == [None] * 4


def test_one_process_needs_no_other():
    assert outcomes([Peer(0, 1, SETTINGS)]) == [None]


def test_it_does_not_matter_who_comes_first():
    address = f"127.0.0.1:{free_port()}"
    late = threading.Timer(0.5, meet, (address, Peer(0, 2, SETTINGS), 10.0))
    late.start()
    meet(address, Peer(1, 2, SETTINGS), 10.0)
    late.join()


def test_configurations_that_differ_are_named():
    heard = outcomes([Peer(0, 2, SETTINGS), Peer(1, 2, SETTINGS | {"seed": 7})])
    assert heard[0] == heard[1]
    assert heard[0].startswith("config.seed is 7 in process 1, and 0 in process 0; start all")


def test_packages_of_other_versions_are_named():
    def heard_with(there):
        return outcomes([Peer(0, 2, SETTINGS, {"odd": "1.0"}), Peer(1, 2, SETTINGS, there)])

    assert heard_with({"odd": "1.0"}) == [None, None]
    for there, version in (({"odd": "1.1"}, "1.1"), ({}, "missing")):
        heard = heard_with(there)
        assert heard[0] == heard[1]
        assert heard[0].startswith(f"the package odd is {version} in process 1, and 1.0 in proc")


def test_all_of_many_hear_of_a_disagreement():
    """Also those that come after it."""
    started = time.monotonic()
    peers = [Peer(k, 5, SETTINGS | {"seed": int(k == 1)}) for k in range(5)]
    heard = outcomes(peers, delays=[0, 0, 0.5, 1, 1.5])
    assert time.monotonic() - started < 5
    assert len(set(heard)) == 1
    assert heard[0].startswith("config.seed is 1 in process 1, and 0 ")


def test_another_number_of_processes_is_named():
    heard = outcomes([Peer(0, 2, SETTINGS), Peer(1, 3, SETTINGS)])
    assert heard[0] == heard[1]
    assert heard[0].startswith("process 1 has --num_processes=3, process 0 2; start all")


def test_a_number_given_twice_is_named():
    heard = outcomes([Peer(0, 3, SETTINGS), Peer(1, 3, SETTINGS), Peer(1, 3, SETTINGS)])
    assert len(set(heard)) == 1
    assert heard[0].startswith("two processes have --process_id=1; give each of the 3 a number")


def test_two_main_processes_on_one_machine_are_noticed():
    port = free_port()
    with socket.create_server(("", port)):
        heard = outcomes([Peer(0, 2, SETTINGS)], address=f"127.0.0.1:{port}")
    assert heard[0].startswith(f"process 0 cannot listen at port {port}")


def test_a_process_that_does_not_come_is_named_in_time():
    started = time.monotonic()
    heard = outcomes([Peer(0, 4, SETTINGS), Peer(2, 4, SETTINGS)], seconds=4)
    assert time.monotonic() - started < 15
    assert heard[0] == heard[1]
    assert heard[0].startswith("process 1, 3 of 4 did not come within 4 s; start all")


def test_of_many_processes_that_do_not_come_a_few_are_named():
    (heard,) = outcomes([Peer(0, 20_000, SETTINGS)], seconds=0.1)
    assert heard.startswith("process 1, 2, 3, 4, 5, 6, 7, 8 and 19,991 more of 20000 ")


@pytest.mark.parametrize("number", [0, -1, 10**12])
def test_no_run_is_of_so_many_processes(number):
    with pytest.raises(UserError, match=f"--num_processes={number}.*1.*65,536"):
        meet("127.0.0.1:1", Peer(0, number, SETTINGS), 1.0)


def test_a_coordinator_that_is_not_there_is_named_in_time():
    started = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    (heard,) = outcomes([Peer(1, 2, SETTINGS)], seconds=1.0, address=address)
    assert time.monotonic() - started < 5
    assert f"has not met process 0 at --coordinator_address={address} within 1 s" in heard
    assert "Connection refused" in heard


def test_a_name_that_is_no_machine_is_named():
    (heard,) = outcomes([Peer(1, 2, SETTINGS)], seconds=0.5, address="nowhere.invalid:1234")
    assert "--coordinator_address=nowhere.invalid:1234" in heard


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:http", "host:0", "h:70000"])
def test_an_address_must_have_a_host_and_a_port(address):
    with pytest.raises(UserError, match="HOST:PORT"):
        meet(address, Peer(0, 1, SETTINGS), 1.0)


@pytest.mark.parametrize("process_id", [-1, 2, 5])
def test_a_number_must_be_below_their_count(process_id):
    with pytest.raises(UserError, match=f"--process_id={process_id}.*0.*1"):
        meet("127.0.0.1:1", Peer(process_id, 2, SETTINGS), 1.0)


def host_of_two():
    """The port and the thread of a process 0 that waits for another."""
    port = free_port()
    host = threading.Thread(target=meet, args=(f"127.0.0.1:{port}", Peer(0, 2, SETTINGS), 10.0))
    host.start()
    return port, host


def connection_to(port):
    """A connection to who listens at a port, or is about to."""
    deadline = time.monotonic() + 8
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        json.dumps("x" * 10).encode(),
        b'{"process_id": "x", "num_processes": 2, "settings": {}}\n',
        b'{"process_id": 5, "num_processes": 2, "settings": {}}\n',
        b'{"process_id": true, "num_processes": 2, "settings": {}}\n',
        b'{"process_id": 1, "num_processes": 2, "settings": 7}\n',
        b'{"process_id": 1, "num_processes": 2, "settings": {}, "more": 1}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_strangers_at_the_port_disturb_nobody(noise):
    port, host = host_of_two()
    with connection_to(port) as stranger:
        stranger.sendall(noise)
    meet(f"127.0.0.1:{port}", Peer(1, 2, SETTINGS), 10.0)
    host.join(timeout=10)
    assert not host.is_alive()


def test_silent_strangers_hold_nobody_up():
    port, host = host_of_two()
    silent = [connection_to(port) for _ in range(4)]
    started = time.monotonic()
    meet(f"127.0.0.1:{port}", Peer(1, 2, SETTINGS), 10.0)
    assert time.monotonic() - started < 4  # Each stranger has 5 s to speak.
    host.join(timeout=10)
    for one in silent:
        one.close()
