"""Whether the processes of a run are all there and agree: asked before JAX connects them.

JAX ends a process that cannot connect by an abort in C++, minutes later and without a reason. So
process 0 first listens at the coordinator's address itself, the others say who they are, and all
hear either that they may go on, or in one line why not.
"""

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ensemble.errors import PeerLost, UserError

_MAX_PROCESSES = 65_536  # More have no ports to be heard at.
_MAX_NAMED = 8
_MAX_BYTES = 1_000_000  # Of a message: more is none of ours.
_RETRY_SECONDS = 0.2
_ANSWER_SECONDS = 2.0
_HELLO_SECONDS = 5.0
_LATE_SECONDS = 10.0


class Peer(NamedTuple):
    """What a process says of itself.

    Attributes:
        process_id: 0..P-1.
        num_processes: P.
        settings: flat, the same in all processes.
        packages: versions of the installed packages that the run has tenants of, by name.
    """

    process_id: int
    num_processes: int
    settings: dict[str, Any]
    packages: Mapping[str, str] = MappingProxyType({})


def meet(address: str, peer: Peer, seconds: float) -> None:
    """Waits until all processes are there, and compares what they say.

    Args:
        address: HOST:PORT of process 0.
        peer: this process.
        seconds: how long to wait.

    Raises:
        UserError: the address cannot be used, a process is there twice, or they do not agree.
        PeerLost: a process is missing. All that are there raise the same.
    """
    host, port = _parse(address)
    if not 0 < peer.num_processes <= _MAX_PROCESSES:
        raise UserError(
            f"--num_processes={peer.num_processes} must be from 1 to {_MAX_PROCESSES:,}; count the "
            "processes that are to be one run"
        )
    if not 0 <= peer.process_id < peer.num_processes:
        raise UserError(
            f"--process_id={peer.process_id} must be from 0 to {peer.num_processes - 1}, below "
            f"--num_processes={peer.num_processes}"
        )
    deadline = time.monotonic() + seconds
    if peer.process_id == 0:
        _host(port, peer, deadline, seconds)
    else:
        _join(host, port, peer, deadline, seconds)


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(
            f"--coordinator_address={address} must be HOST:PORT of process 0, such as 10.0.0.1:8476"
        )
    return host.strip("[]"), int(port)


def _host(port: int, own: Peer, deadline: float, seconds: float) -> None:
    """Process 0: hears all the others, then answers them."""
    heard: queue.Queue[tuple[Peer, socket.socket]] = queue.Queue()
    others: dict[int, socket.socket] = {}
    answered: list[socket.socket] = []
    problem, is_missing = None, False
    with _listen(port, own) as server:
        done = threading.Event()
        accepting = threading.Thread(target=_accept, args=(server, heard, done), daemon=True)
        accepting.start()
        while len(answered) < own.num_processes - 1:
            try:
                other, connection = heard.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                is_missing = problem is None
                break
            answered.append(connection)
            new_problem = _disagreement(own, other, set(others))
            others.setdefault(other.process_id, connection)
            if problem is None and new_problem is not None:
                problem = new_problem
                # The rest shall hear it too, if they come soon.
                deadline = min(deadline, time.monotonic() + _LATE_SECONDS)
        done.set()
        accepting.join()  # The port is free only when nobody waits at it.
        if is_missing:
            missing = sorted(set(range(1, own.num_processes)) - set(others))
            more = f" and {len(missing) - _MAX_NAMED:,} more" if missing[_MAX_NAMED:] else ""
            problem = (
                f"process {', '.join(map(str, missing[:_MAX_NAMED]))}{more} of "
                f"{own.num_processes} did not come "
                f"within {seconds:g} s; start all, with the same --coordinator_address and "
                "--num_processes"
            )
        for connection in answered:
            with contextlib.suppress(OSError), connection:
                _send(connection, {"problem": problem, "is_missing": is_missing})
    if problem is not None:
        raise (PeerLost if is_missing else UserError)(problem)


def _listen(port: int, own: Peer) -> socket.socket:
    is_dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if is_dual else socket.AF_INET,
            dualstack_ipv6=is_dual,
            backlog=own.num_processes + 16,
        )
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen at port {port} of --coordinator_address: "
            f"{error.strerror or error}; is another process 0 there? Else use another port"
        ) from None


def _accept(
    server: socket.socket,
    heard: queue.Queue[tuple[Peer, socket.socket]],
    done: threading.Event,
) -> None:
    """Hears everyone who comes, each in a thread: a silent stranger holds nobody up."""
    server.settimeout(_RETRY_SECONDS)
    while not done.is_set():
        with contextlib.suppress(OSError):  # Nobody came, or he has gone already.
            connection, _ = server.accept()
            threading.Thread(target=_hear, args=(connection, heard), daemon=True).start()


def _hear(connection: socket.socket, heard: queue.Queue[tuple[Peer, socket.socket]]) -> None:
    try:
        content = _receive(connection, time.monotonic() + _HELLO_SECONDS)
        heard.put((_peer_of(content), connection))
    except (OSError, ValueError, TypeError, RecursionError):
        connection.close()  # None of ours: a scan of ports, or a process that has died.


def _peer_of(content: dict[str, Any]) -> Peer:
    """What a process says of itself; raises ValueError or TypeError for what none would say."""
    peer = Peer(**content)
    numbers = peer.process_id, peer.num_processes
    if not all(type(number) is int for number in numbers) or type(peer.settings) is not dict:
        raise TypeError("no process says that")
    if not isinstance(peer.packages, Mapping):
        raise TypeError("no process says that")
    if not 0 <= peer.process_id < peer.num_processes:
        raise ValueError("no process says that")
    return peer


def _disagreement(own: Peer, other: Peer, others: set[int]) -> str | None:
    """Why the processes cannot go on together, if they cannot."""
    if other.num_processes != own.num_processes:
        return (
            f"process {other.process_id} has --num_processes={other.num_processes}, process 0 "
            f"{own.num_processes}; start all with the same number"
        )
    if other.process_id == 0 or other.process_id in others:
        return (
            f"two processes have --process_id={other.process_id}; give each of the "
            f"{own.num_processes} a number of its own, from 0"
        )
    names = [*own.settings, *(name for name in other.settings if name not in own.settings)]
    for name in names:
        here, there = own.settings.get(name), other.settings.get(name)
        if json.dumps(here) != json.dumps(there):
            return (
                f"config.{name} is {there!r} in process {other.process_id}, and {here!r} in "
                "process 0; start all processes with the same arguments"
            )
    for package in {**own.packages, **other.packages}:
        here, there = (one.packages.get(package, "missing") for one in (own, other))
        if here != there:
            return (
                f"the package {package} is {there} in process {other.process_id}, and {here} in "
                "process 0; install the same version everywhere"
            )
    return None


def _join(host: str, port: int, own: Peer, deadline: float, seconds: float) -> None:
    """The other processes: say who they are, and wait for the answer."""
    reason = "it does not answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(
                (host, port), timeout=max(deadline - time.monotonic(), 0.001)
            ) as connection:
                _send(connection, {**own._asdict(), "packages": dict(own.packages)})
                # It may have come just now, and waits as long for the others.
                answer = _receive(connection, time.monotonic() + seconds + _ANSWER_SECONDS)
        except (OSError, ValueError) as error:
            reason = str(error) or reason
            time.sleep(_RETRY_SECONDS)
            continue
        if answer.get("problem"):
            raise (PeerLost if answer.get("is_missing") else UserError)(str(answer["problem"]))
        return
    raise PeerLost(
        f"process {own.process_id} has not met process 0 at --coordinator_address={host}:{port} "
        f"within {seconds:g} s ({reason}); is it running, is the port open, "
        "or has it begun with fewer processes, or ended? Its log says"
    )


def _send(connection: socket.socket, content: dict[str, Any]) -> None:
    connection.sendall(json.dumps(content).encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Reads one line of JSON.

    Raises:
        OSError: the other side is late or gone.
        ValueError: it sends something else.
    """
    content = b""
    while not content.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(65536)
        content += part
        if not part or len(content) > _MAX_BYTES:
            raise ValueError("it answers otherwise than train.py")
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it answers otherwise than train.py")
    return found
