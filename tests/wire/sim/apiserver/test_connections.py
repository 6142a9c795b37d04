# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import yaml

from gpuslice.sim.apiserver.certificates import self_signed
from gpuslice.sim.apiserver.server import ApiServer
from tests.wire.sim.apiserver.asking import PODS, Client, build_pod


def test_tls_is_verified_against_the_kubeconfigs_authority(tmp_path: Path) -> None:
    with ApiServer() as server:
        config = yaml.safe_load(server.kubeconfig(tmp_path / "config").read_text())
        cluster = config["clusters"][0]["cluster"]
        ca_pem = base64.b64decode(cluster["certificate-authority-data"])
        client = Client(cluster["server"], ca_pem, user=config["users"][0]["user"]["token"])
        assert client.post(PODS, build_pod()).code == 201
        client.close()
        stranger = Client(server.url, self_signed(["127.0.0.1"]).certificate)
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.get(PODS)


def test_a_silent_client_holds_nobody_back() -> None:
    with ApiServer() as server:
        client = Client(server.url, server.ca_pem)
        address = (client.parts.hostname, client.parts.port)
        with socket.create_connection(address), socket.create_connection(address):
            assert client.get(PODS).code == 200
        client.close()


def test_stopping_ends_watches_and_silent_connections_within_a_second() -> None:
    server = ApiServer().start()
    client = Client(server.url, server.ca_pem)
    client.post(PODS, build_pod())
    events = client.watch(f"{PODS}?watch=1")
    assert next(events)["type"] == "ADDED"
    address = (client.parts.hostname, client.parts.port)
    with socket.create_connection(address):
        rest: list[object] = []
        reader = threading.Thread(target=lambda: rest.extend(events))
        reader.start()
        begin = time.monotonic()
        server.stop()
        reader.join(5)
        assert time.monotonic() - begin < 1
    assert rest == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    client.close()


def test_a_chunked_body_is_read(client: Client) -> None:
    client.connection.request(
        "POST",
        PODS,
        iter([b'{"metadata":{"name":"p"},', b'"spec":{"containers":[{"name":"a","image":"b"}]}}']),
        {"Content-Type": "application/json"},
        encode_chunked=True,
    )
    response = client.connection.getresponse()
    response.read()
    assert response.status == 201
    assert client.get(f"{PODS}/p").code == 200


def test_a_body_beyond_the_limit_is_refused(client: Client) -> None:
    with socket.create_connection((client.parts.hostname, client.parts.port)) as raw:
        raw.sendall(f"POST {PODS} HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n".encode())
        assert raw.recv(64).startswith(b"HTTP/1.1 413 ")


def test_another_format_is_refused(client: Client) -> None:
    said = client.send("POST", PODS, b"k8s\x00", "application/vnd.kubernetes.protobuf")
    assert said.why == (415, "UnsupportedMediaType")


def test_many_writers_of_one_object_lose_no_update(server: ApiServer, client: Client) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    client.post(path, {"metadata": {"name": "counts"}, "data": {"n": "0"}})

    def count() -> None:
        mine = Client(server.url, b"")
        done = 0
        while done < 20:
            now = mine.get(f"{path}/counts").body
            now["data"]["n"] = str(int(now["data"]["n"]) + 1)
            done += mine.put(f"{path}/counts", now).code == 200
        mine.close()

    writers = [threading.Thread(target=count) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert client.get(f"{path}/counts").body["data"] == {"n": "80"}
