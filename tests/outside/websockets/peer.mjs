// Node's ws against the server: `peer.mjs BASE`, with ws in NODE_PATH. Prints the number of steps,
// how many of them failed, and which.

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createRequire } from 'node:module';

const WebSocket = createRequire(`${process.env.NODE_PATH}/`)('ws');
const base = process.argv[2].replace('http', 'ws');
let steps = 0;
const faults = [];
const check = (isRight, name) => {
  steps += 1;
  if (!isRight) faults.push(name);
};

async function open(path, options) {
  const socket = new WebSocket(base + path, { perMessageDeflate: false, maxPayload: 0, ...options });
  const incoming = [];
  const waiting = [];
  socket.on('message', (data, isBinary) => {
    const message = isBinary ? data : data.toString();
    waiting.length > 0 ? waiting.shift()(message) : incoming.push(message);
  });
  const recv = () => (incoming.length > 0 ? incoming.shift() : new Promise((resolve) => waiting.push(resolve)));
  await once(socket, 'open');
  return { socket, recv };
}

async function messages(perMessageDeflate) {
  const { socket, recv } = await open('/ws', { perMessageDeflate });
  check((socket.extensions !== '') === (perMessageDeflate !== false), 'what is agreed on');
  for (const size of [0, 1, 125, 126, 127, 2_000, 65_535, 65_536, 300_000, 1_000_000]) {
    const [text, bytes] = ['é'.repeat(size / 2), randomBytes(size)];
    socket.send(text);
    check((await recv()) === text, `text of ${size}`);
    socket.send(bytes);
    check(bytes.equals(await recv()), `bytes of ${size}`);
    for (const [at, last] of [[0, false], [1, false], [2, true]]) {
      socket.send(bytes.subarray((at * size) / 3, ((at + 1) * size) / 3), { binary: true, fin: last });
      if (!last) socket.ping(`${at}`);
    }
    check(bytes.equals(await recv()), `fragments of ${size}`);
  }
  const pong = once(socket, 'pong');
  socket.ping('there?');
  check((await pong).toString() !== '', 'pong');
  socket.close(3000, 'done');
  check((await once(socket, 'close'))[0] === 3000, 'our 3000');
}

async function closes() {
  for (const code of [1000, 1001, 3000, 4999]) {
    const { socket } = await open(`/ws/closes/${code}`);
    const [said, reason] = await once(socket, 'close');
    check(said === code && reason.toString() === 'on purpose', `the server's ${code}`);
  }
  const { socket } = await open('/ws');
  socket.on('error', () => {});
  socket.send(Buffer.alloc(1_100_000));
  check((await once(socket, 'close'))[0] === 1009, '1009');
}

const late = setTimeout(() => end('it takes more than two minutes'), 120_000);
function end(fault) {
  if (fault) check(false, fault);
  console.log(`${steps} ${faults.length} ${faults.slice(0, 5).join('; ')}`.trim());
  process.exit(0);
}
try {
  for (const deflate of [false, true, { serverNoContextTakeover: true, threshold: 0 }]) await messages(deflate);
  await closes();
} catch (error) {
  check(false, `${error.code ?? error.message}`);
}
clearTimeout(late);
end();
