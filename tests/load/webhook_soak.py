# SPDX-License-Identifier: Apache-2.0
"""The webhook under bad input, bad clients and new certificates: `make soak-webhook MINUTES=30`.

A third of the time certificates are rotated; then one worker lives to the end, and must not grow.
Prints a line now and then; ends with 1 where an answer was wrong or something grew.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tests.load import bodies, clients, processes
from tests.load.processes import Cost
from tests.wire.webhook.rig import Cluster, Webhook
from webhook import certs, trust

GOOD_CLIENTS = 4
THINK_SECONDS = 0.02
"""Between two requests of one client: load that leaves the machine usable."""
MAX_GROWTH_MIB = 12.0
WARM_UP_GROWTH_MIB = 36.0
"""In a run that is too short for a worker to have met all that it ever meets."""
LONG_SECONDS = 300.0
ANSWER_SECONDS = 30.0
"""Long after the API server would have given up: a busy machine is no fault."""
MAX_GROWTH_COUNT = 8
"""Of threads and descriptors: the server's own come and go by a few."""
SETTLE_SECONDS = 4.0
BAD_PATHS = ("/admit/pods", "/admit/pods/warnings", "/admit/templates", "/admit/bindings", "/x")


class Faults:
    """What went wrong, and how much was done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def add(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)
        print(f"WRONG {text}", flush=True)  # noqa: T201  what this program is for


class GoodClient:
    """As an API server: kept connections, and never a sent request that isn't answered."""

    def __init__(self, port: int, faults: Faults, chance: random.Random) -> None:
        self._port = port
        self._faults = faults
        self._chance = chance
        self._context = clients.tls_context()
        self._sock: ssl.SSLSocket | None = None
        self._bodies = [bodies.review(size_bytes=size) for size in (2_000, 4_000, 20_000, 100_000)]

    def step(self) -> None:
        body = self._chance.choice(self._bodies)
        sock = self._connection()
        try:
            sock.sendall(clients.request(body))
            status, content, is_last = read_answer(sock)
        except (OSError, ConnectionError) as error:
            self._faults.add(f"a good request got no answer: {error!r}")
            self._drop()
            return
        response = orjson.loads(content)["response"] if status == 200 else {}
        if status != 200 or not response["allowed"] or not response.get("patch"):
            self._faults.add(f"a good request got {status} {content[:200]!r}")
        self._faults.count("good")
        if is_last:
            self._drop()

    def _connection(self) -> ssl.SSLSocket:
        if self._sock is not None and _has_ended(self._sock):
            self._drop()
        if self._sock is None:
            self._sock = clients.connect(self._port, self._context, timeout_seconds=ANSWER_SECONDS)
        return self._sock

    def end(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _has_ended(sock: ssl.SSLSocket) -> bool:
    """Whether the server closed it meanwhile: what any HTTP client looks at before it sends."""
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            sock.settimeout(ANSWER_SECONDS)


def read_answer(sock: ssl.SSLSocket) -> tuple[int, bytes, bool]:
    """Return status, body, and whether the connection ends with it."""
    received = b""
    while True:
        piece = sock.recv(1 << 16)
        if not piece:
            raise ConnectionError(f"the end after {len(received)} bytes")
        received += piece
        length = clients.answer_length(received)
        if length is not None and len(received) >= length:
            head, _, content = received.partition(b"\r\n\r\n")
            return int(head.split(b" ", 2)[1]), content, b"connection: close" in head.lower()


class BadClient:
    """Sends what nobody should, in ways nobody should. Anything but a 5xx is a fine answer."""

    def __init__(self, port: int, faults: Faults, chance: random.Random) -> None:
        self._port = port
        self._faults = faults
        self._chance = chance
        self._context = clients.tls_context()
        self._review = bodies.review(size_bytes=4_000)
        self._held: list[socket.socket] = []
        self._ways: list[Callable[[], None]] = [
            self._spoilt,
            self._spoilt,
            self._spoilt,
            self._noise,
            self._cut_json,
            self._deep,
            self._too_large,
            self._no_http,
            self._no_tls,
            self._silent,
            self._slow,
            self._half_closed,
            self._reset,
        ]

    def step(self) -> None:
        way = self._chance.choice(self._ways)
        with contextlib.suppress(OSError, ConnectionError):
            way()
        self._faults.count(way.__name__.strip("_"))

    def end(self) -> None:
        for sock in self._held:
            sock.close()
        self._held.clear()

    def _post(self, body: bytes, path: str | None = None) -> None:
        path = path or self._chance.choice(BAD_PATHS)
        with clients.connect(self._port, self._context) as sock:
            sock.sendall(clients.request(body, path))
            self._judge(sock, body)

    def _judge(self, sock: ssl.SSLSocket, body: bytes) -> None:
        status, content, _ = read_answer(sock)
        if status >= 500:
            self._faults.add(f"{status} {content[:200]!r} for {body[:2000]!r}")

    def _spoilt(self) -> None:
        self._post(bodies.spoilt(self._review, self._chance))

    def _noise(self) -> None:
        self._post(self._chance.randbytes(self._chance.randint(0, 5000)))

    def _cut_json(self) -> None:
        self._post(self._review[: self._chance.randrange(len(self._review))])

    def _deep(self) -> None:
        self._post(self._chance.choice((b"[", b'{"a":', b'{"request":[')) * 50_000)

    def _too_large(self) -> None:
        # Seldom: it is the loopback's work more than the server's.
        if self._chance.random() < 0.1:
            self._post(b" " * (9 * 2**20))

    def _no_http(self) -> None:
        with clients.connect(self._port, self._context) as sock:
            sock.sendall(self._chance.randbytes(300) + b"\r\n\r\n")
            sock.settimeout(1.0)
            sock.recv(100)

    def _no_tls(self) -> None:
        with socket.create_connection((clients.HOST, self._port), timeout=1.0) as raw:
            raw.sendall(
                self._chance.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0" * 99))
            )
            raw.recv(100)

    def _silent(self) -> None:
        """Open connections that say nothing, and keep them for a while."""
        self._held.append(socket.create_connection((clients.HOST, self._port), timeout=1.0))
        if len(self._held) > 20:
            self.end()

    def _slow(self) -> None:
        """Send a request in small pieces."""
        body = self._review
        with clients.connect(self._port, self._context) as sock:
            message = clients.request(body)
            for start in range(0, len(message), 500):
                sock.sendall(message[start : start + 500])
                time.sleep(0.02)
            self._judge(sock, body)

    def _half_closed(self) -> None:
        """Say that nothing more comes, before or after the end of the request."""
        message = clients.request(self._review)
        with clients.connect(self._port, self._context) as sock:
            sock.sendall(message[: self._chance.choice((len(message) // 2, len(message)))])
            socket.socket.shutdown(sock, socket.SHUT_WR)
            sock.settimeout(1.0)
            sock.recv(100)

    def _reset(self) -> None:
        """Vanish in the middle."""
        message = clients.request(self._review)
        sock = clients.connect(self._port, self._context)
        sock.sendall(message[: self._chance.randrange(1, len(message))])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


class Certificates:
    """Writes a new leaf into the folder that the webhook reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = certs.service_names("gpuslice-webhook", "gpuslice")
        self._authority = certs.new_authority(datetime.now(UTC))

    def renew(self) -> bytes:
        leaf = certs.new_leaf(self._authority, self._names, datetime.now(UTC))
        trust.write_files(self._folder, leaf)
        return leaf.certificate_pem.strip()


def _serves(port: int, pem: bytes) -> bool:
    with contextlib.suppress(OSError):
        return ssl.get_server_certificate((clients.HOST, port)).encode().strip() == pem
    return False


def _look(webhook: Webhook, began: float, faults: Faults) -> Cost:
    found = processes.cost(processes.family(webhook.process.pid))
    done = sum(faults.done.values())
    print(  # noqa: T201
        f"{time.monotonic() - began:7.0f} s  {done:8} requests  {found.cpu_seconds:8.1f} CPU s  "
        f"{found.pss_mib:6.1f} MiB  {found.threads:4} threads  {found.descriptors:4} descriptors  "
        f"{len(faults.wrong)} wrong",
        flush=True,
    )
    return found


def soak(seconds: float, seed: int) -> list[str]:
    """Return what was wrong."""
    faults, stopping, began = Faults(), threading.Event(), time.monotonic()
    cluster = Cluster()
    with tempfile.TemporaryDirectory(prefix="gs-soak-") as text:
        folder = Path(text)
        certificates = Certificates(folder)
        certificates.renew()
        webhook = Webhook(
            cluster, "webhook.certificateMode=files", f"webhook.certificateDir={folder}"
        )
        try:
            webhook.wait_ready()
            bad = [
                BadClient(webhook.port, faults, random.Random(seed + number)) for number in range(4)
            ]
            good = [
                GoodClient(webhook.port, faults, random.Random(seed - number))
                for number in range(1, GOOD_CLIENTS + 1)
            ]
            threads = [
                threading.Thread(target=_repeat, args=(each.step, stopping, faults))
                for each in (*bad, *good)
            ]
            for thread in threads:
                thread.start()
            rotations = _rotate(webhook, certificates, began, seconds / 3, faults)
            print(f"{rotations} certificates served, none lost a request so far", flush=True)  # noqa: T201
            until = began + seconds
            pause = max(2.0, seconds / 30)
            looks = []
            while time.monotonic() + pause < until:
                time.sleep(pause)
                looks.append(_look(webhook, began, faults))
            stopping.set()
            for thread in threads:
                thread.join(30)
            for each in (*bad, *good):
                each.end()
            time.sleep(SETTLE_SECONDS)
            last = _look(webhook, began, faults)
            most = MAX_GROWTH_MIB if seconds >= LONG_SECONDS else WARM_UP_GROWTH_MIB
            faults.wrong += _grown(looks[len(looks) // 4], last, most)
            print(f"done: {dict(sorted(faults.done.items()))}", flush=True)  # noqa: T201
            webhook.process.send_signal(signal.SIGTERM)
            if webhook.process.wait(20) != 0:
                faults.add(f"the exit code is {webhook.process.returncode}")
        finally:
            stopping.set()
            webhook.close()
            cluster.close()
    return faults.wrong


def _repeat(step: Callable[[], None], stopping: threading.Event, faults: Faults) -> None:
    while not stopping.wait(THINK_SECONDS):
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
            faults.add(f"a client failed: {error!r}")


def _rotate(
    webhook: Webhook, certificates: Certificates, began: float, seconds: float, faults: Faults
) -> int:
    """Renew the certificate again and again; return how often."""
    count = 0
    while time.monotonic() - began < seconds:
        pem = certificates.renew()
        if seconds < 60:
            # What the webhook's own look does every 30 s.
            webhook.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while not _serves(webhook.port, pem):
            if time.monotonic() > until:
                faults.add("a new certificate was not served within 60 s")
                break
            time.sleep(0.2)
        count += 1
        time.sleep(5)  # the old worker's end
        _look(webhook, began, faults)
    return count


def _grown(early: Cost, last: Cost, most_mib: float) -> list[str]:
    found = []
    if last.pss_mib - early.pss_mib > most_mib:
        found.append(f"memory grew from {early.pss_mib:.1f} to {last.pss_mib:.1f} MiB")
    if last.threads - early.threads > MAX_GROWTH_COUNT:
        found.append(f"threads grew from {early.threads} to {last.threads}")
    if last.descriptors - early.descriptors > MAX_GROWTH_COUNT:
        found.append(f"descriptors grew from {early.descriptors} to {last.descriptors}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)  # noqa: T201
    wrong = soak(60 * chosen.minutes, chosen.seed)
    print("\n".join(wrong) or "nothing wrong, nothing grown")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
