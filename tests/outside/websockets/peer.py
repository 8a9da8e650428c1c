"""Python's websockets against the server: `peer.py BASE [AUTHORITY]`. Prints the number of steps, how
many of them failed, and which."""

import asyncio
import os
import ssl
import sys

import websockets

BASE = sys.argv[1].replace("http", "ws", 1)
TLS = ssl.create_default_context(cafile=sys.argv[2]) if BASE.startswith("wss") else None
SIZES = (0, 1, 125, 126, 127, 2_000, 65_535, 65_536, 300_000, 1_000_000)
steps, faults = 0, []


def check(is_right, name):
    global steps
    steps += 1
    if not is_right:
        faults.append(name)


def connect(path="/ws", compression="deflate"):
    return websockets.connect(BASE + path, ssl=TLS, compression=compression, max_size=None, proxy=None)


async def messages(compression):
    async with connect(compression=compression) as socket:
        for size in SIZES:
            text, octets = "é" * (size // 2), os.urandom(size)
            await socket.send(text)
            check(await socket.recv() == text, f"text of {size}, {compression}")
            await socket.send(octets)
            check(await socket.recv() == octets, f"bytes of {size}, {compression}")
            pieces = [octets[at : at + 1 + size // 7] for at in range(0, size, 1 + size // 7)]
            if pieces:
                await socket.send(pieces)
                check(await socket.recv() == octets, f"fragments of {size}, {compression}")
        for number in range(100):
            await socket.send(str(number))
        for number in range(100):
            check(await socket.recv() == str(number), f"message {number} of many")
        for payload in (b"", b"x", bytes(125)):
            answered = await socket.ping(payload)
            check(await asyncio.wait_for(answered, 20) >= 0, "ping")


async def closes():
    for code in (1000, 1001, 3000, 4999):
        async with connect() as socket:
            await socket.close(code, "reason")
            check(socket.protocol.close_rcvd.code == code, f"our {code}")
        async with connect(f"/ws/closes/{code}") as socket:
            await socket.wait_closed()
            said = (socket.close_code, socket.close_reason)
            check(said == (code, "on purpose"), f"the server's {code}")
    # A message that is larger than the server allows.
    async with connect(compression=None) as socket:
        await socket.send(bytes(1_100_000))
        await socket.wait_closed()
        check(socket.close_code == 1009, "1009")


async def drained(path):
    """Stays connected until the server ends; creating `path` asks the script to end it."""
    async with connect() as socket:
        await socket.send("here")
        await socket.recv()
        open(path, "w").close()
        await socket.wait_closed()
        check(socket.close_code == 1001, f"{socket.close_code} instead of 1001 at a drain")


async def main():
    if len(sys.argv) > 3:
        return await drained(sys.argv[3])
    await messages("deflate")
    await messages(None)
    await closes()


try:
    asyncio.run(asyncio.wait_for(main(), 120))
except Exception as error:
    check(False, f"{type(error).__name__}: {error}")
print(f"{steps} {len(faults)} {'; '.join(faults[:5])}".strip())
