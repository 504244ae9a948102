"""A collector of OpenTelemetry spans on loopback, that any OTLP exporter can send to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What it was sent: paths, headers (names in lower case), and bodies as OTLP has them in JSON."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""

    @property
    def resource(self) -> dict[str, Any]:
        """Attributes of what sent the first request."""
        return attributes(self.requests[0][2]["resourceSpans"][0]["resource"])

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans, in the order in which they came."""
        scopes = [scope for _, _, body in self.requests for one in body["resourceSpans"] for scope in one["scopeSpans"]]
        return [span for scope in scopes for span in scope["spans"]]


def attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    return {entry["key"]: next(iter(entry["value"].values())) for entry in owner["attributes"]}


@contextmanager
def collecting(code: int = 200, location: str = "") -> Iterator[Collector]:
    """A collector that answers everything with this code."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            collector.requests.append((self.path, headers, MessageToDict(ExportTraceServiceRequest.FromString(body))))
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
