"""Many plain clients in one process: HTTP/1.1 over TLS, a small request every few seconds on one connection each. A client never gives
up on a request: only the end of the connection makes it connect again, as a program without timeouts would. Prints a JSON object a
line, times in s on CLOCK_MONOTONIC:

    {"client": n, "event": "served", "by": apiserver, "port": own, "at": s}       the first answer of a connection
    {"client": n, "event": "answered", "at": s}
    {"client": n, "event": "ended", "how": "reset"|"closed"|"broken", "at": s}    the client did not end it
    {"client": n, "event": "failed", "how": words, "at": s}                       a connection that never had an answer
"""

import argparse
import errno
import heapq
import json
import re
import selectors
import socket
import ssl
import sys
import time

# Until a connection and its TLS handshake are done, as kubelets have it.
CONNECT_S = 10
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
NAME = re.compile(rb"^x-stand-in: *(\S+)", re.I | re.M)
LENGTH = re.compile(rb"^content-length: *(\d+)", re.I | re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--ca", required=True)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--every", type=float, default=2.0)
    arguments = parser.parse_args()
    Crowd(arguments).live()


class Crowd:
    def __init__(self, arguments):
        host, port = arguments.server.rsplit(":", 1)
        self.server, self.every = (host, int(port)), arguments.every
        self.tls = ssl.create_default_context(cafile=arguments.ca)
        self.selector = selectors.DefaultSelector()
        self.due, self.order = [], 0
        for number in range(arguments.count):
            # Not all at once.
            self.at(time.monotonic() + arguments.every * number / arguments.count, Client(self, number).connect)

    def at(self, when, act):
        self.order += 1
        heapq.heappush(self.due, (when, self.order, act))

    def live(self):
        while True:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
            wait = max(0, self.due[0][0] - time.monotonic()) if self.due else None
            for key, _ in self.selector.select(wait):
                key.data()


class Client:
    def __init__(self, crowd, number):
        self.crowd, self.number = crowd, number
        self.pause, self.connection = PAUSE_MIN_S, 0
        self.stream = None

    def say(self, event, **more):
        print(json.dumps({"client": self.number, "event": event, "at": time.monotonic(), **more}), flush=True)

    def connect(self):
        self.connection += 1
        connection = self.connection
        self.answered, self.asked, self.buffer = 0, False, b""
        stream = socket.socket()
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = stream.connect_ex(self.crowd.server)
        self.stream = stream
        if code not in (0, errno.EINPROGRESS):
            return self.over(OSError(code, errno.errorcode[code]))
        self.watch(selectors.EVENT_WRITE, self.connected)
        self.crowd.at(time.monotonic() + CONNECT_S, lambda: self.too_slow(connection))

    def too_slow(self, connection):
        if connection == self.connection and self.stream and not self.asked:
            self.over(TimeoutError("no connection within 10 s"))

    def watch(self, events, act):
        try:
            self.crowd.selector.modify(self.stream, events, act)
        except KeyError:
            self.crowd.selector.register(self.stream, events, act)

    def connected(self):
        code = self.stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return self.over(OSError(code, errno.errorcode[code]))
        self.crowd.selector.unregister(self.stream)
        self.stream = self.crowd.tls.wrap_socket(self.stream, server_hostname=self.crowd.server[0], do_handshake_on_connect=False)
        self.shake()

    def shake(self):
        try:
            self.stream.do_handshake()
        except ssl.SSLWantReadError:
            return self.watch(selectors.EVENT_READ, self.shake)
        except ssl.SSLWantWriteError:
            return self.watch(selectors.EVENT_WRITE, self.shake)
        except OSError as error:
            return self.over(error)
        self.watch(selectors.EVENT_READ, self.read)
        self.ask(self.connection)

    def ask(self, connection):
        if connection != self.connection or not self.stream:
            return
        try:
            self.asked = True
            self.stream.send(b"GET /livez HTTP/1.1\r\nhost: kubernetes\r\n\r\n")
        except ssl.SSLWantWriteError:
            self.crowd.at(time.monotonic() + 0.1, lambda: self.ask(connection))
        except OSError as error:
            self.over(error)

    def read(self):
        try:
            while True:
                some = self.stream.recv(16384)
                if not some:
                    return self.over(None)
                self.buffer += some
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            return self.over(error)
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not separator or not length or len(body) < int(length[1]):
            return
        self.buffer = body[int(length[1]):]
        if not self.answered:
            name = NAME.search(head)
            self.say("served", by=name[1].decode() if name else "", port=self.stream.getsockname()[1])
        self.answered += 1
        self.pause = PAUSE_MIN_S
        self.say("answered")
        connection = self.connection
        self.crowd.at(time.monotonic() + self.crowd.every, lambda: self.ask(connection))

    def over(self, error):
        """The connection is over; the next one begins after a pause."""
        try:
            self.crowd.selector.unregister(self.stream)
        except (KeyError, ValueError):
            pass
        self.stream.close()
        self.stream = None
        if self.answered:
            reset = isinstance(error, ConnectionError) and not isinstance(error, ssl.SSLError)
            self.say("ended", how="reset" if reset else "closed" if error is None or isinstance(error, ssl.SSLEOFError) else "broken",
                     words=str(error or ""))
        else:
            self.say("failed", how=str(error or "closed"))
        self.crowd.at(time.monotonic() + self.pause, self.connect)
        self.pause = min(self.pause * 2, PAUSE_MAX_S)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)
