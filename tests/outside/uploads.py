"""Python's requests against the server: `uploads.py BASE TRIES [AUTHORITY]`. Prints the number of tries, how
many of them failed, and why. Bodies go to routes that do not read them to their end."""

import collections
import itertools
import sys
import threading

import requests

BASE, TRIES = sys.argv[1], int(sys.argv[2])
AUTHORITY = sys.argv[3] if len(sys.argv) > 3 else True
SIZES, STATUSES = (20_000, 100_000, 1_000_000, 6_000_000), (200, 404, 413, 415)
ATTEMPTS = [(f"/early/{status}", size, status) for size in SIZES for status in STATUSES]
ATTEMPTS.append(("/read", 6_000_000, 413))
BODY = bytes(6_000_000)

reasons, lock, tries = collections.Counter(), threading.Lock(), iter(range(TRIES))


def why(session, path, size, status, closes):
    """Returns why the try failed, or an empty string."""
    headers = {"Connection": "close"} if closes else {}
    try:
        response = session.post(BASE + path, data=BODY[:size], headers=headers, timeout=60)
    except requests.RequestException as error:
        # The innermost cause, without addresses.
        while error.__context__ is not None:
            error = error.__context__
        return type(error).__name__
    return "" if response.status_code == status else f"{response.status_code} instead of {status}"


def client():
    session = requests.Session()
    session.trust_env = False
    session.verify = AUTHORITY
    while True:
        with lock:
            number = next(tries, None)
        if number is None:
            return
        path, size, status = ATTEMPTS[number % len(ATTEMPTS)]
        # Every other round asks for the connection to be closed.
        reason = why(session, path, size, status, number // len(ATTEMPTS) % 2 == 1)
        if reason:
            with lock:
                reasons[f"{reason} ({path}, {size // 1000} kB)"] += 1


clients = [threading.Thread(target=client) for _ in range(8)]
for thread in clients:
    thread.start()
for thread in clients:
    thread.join()
summary = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
print(f"{TRIES} {sum(reasons.values())} {summary}".strip())
