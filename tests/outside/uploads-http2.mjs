// Node's http2 against the server, with several concurrent streams on one connection:
// `uploads-http2.mjs BASE TRIES`. Prints the number of tries, how many of them failed, and why.
// Bodies go to routes that do not read them to their end; small requests run beside them and must
// not suffer.
import http2 from 'node:http2';

const [base, tries] = [process.argv[2], Number(process.argv[3])];
const attempts = [];
for (const size of [20_000, 100_000, 1_000_000, 6_000_000]) {
  for (const status of [200, 404, 413, 415]) attempts.push({ path: `/early/${status}`, size, status });
  attempts.push({ path: '/hello', size: 0, status: 200, text: 'hello' });
}
attempts.push({ path: '/read', size: 6_000_000, status: 413 });
attempts.push({ path: '/read', size: 1_000_000, status: 200, text: '1000000' });

const body = Buffer.alloc(6_000_000);
const reasons = new Map();
let [next, lost] = [0, 0];
// Node counts queued output, resets its own streams beyond 10 MB of it (ENHANCE_YOUR_CALM, code
// 11), and never uncounts some reset streams: this limit is more than all tries send.
const session = http2.connect(base, { maxSessionMemory: 1_000_000 });
let broken = '';
session.on('error', (error) => (broken = error.code ?? error.message));
session.on('goaway', (code) => (broken = `GOAWAY ${code}`));

function attempt({ path, size, status, text }) {
  return new Promise((resolve) => {
    const stream = session.request({ ':method': size ? 'POST' : 'GET', ':path': path });
    let [got, content] = [0, ''];
    const timer = setTimeout(() => stream.close(8), 60_000);
    stream.on('response', (head) => (got = head[':status']));
    stream.setEncoding('utf8');
    stream.on('data', (piece) => (content += piece));
    // A reset with NO_ERROR after a complete response only says that the rest of the body is not
    // needed.
    stream.on('error', () => {});
    stream.on('close', () => {
      clearTimeout(timer);
      if (got !== status) return resolve(broken || `${got} instead of ${status}, code ${stream.rstCode}`);
      if (text !== undefined && content !== text) return resolve(`${content.length} wrong bytes`);
      resolve(stream.rstCode === 0 ? '' : `reset with ${stream.rstCode}`);
    });
    stream.end(size ? body.subarray(0, size) : undefined);
  });
}

async function client() {
  while (next < tries) {
    const one = attempts[next++ % attempts.length];
    const reason = await attempt(one);
    if (reason !== '') {
      lost += 1;
      const failure = `${reason} (${one.path}, ${one.size / 1000} kB)`;
      reasons.set(failure, (reasons.get(failure) ?? 0) + 1);
    }
  }
}

await Promise.all(Array.from({ length: 8 }, client));
const summary = [...reasons].map(([reason, count]) => `${count} x ${reason}`);
console.log(`${tries} ${lost} ${summary.join('; ')}`.trim());
process.exit(0);
