// Node's fetch, which is undici, against the server: `uploads.mjs BASE TRIES`. Prints the number of
// tries, how many of them failed, and why. Bodies go to routes that do not read them to their end.

const [base, tries] = [process.argv[2], Number(process.argv[3])];
const attempts = [];
for (const size of [20_000, 100_000, 1_000_000, 6_000_000]) {
  for (const status of [200, 404, 413, 415]) attempts.push({ path: `/early/${status}`, size, status });
}
attempts.push({ path: '/read', size: 6_000_000, status: 413 });

const body = new Uint8Array(6_000_000);
const reasons = new Map();
let [next, lost] = [0, 0];

async function client() {
  while (next < tries) {
    const { path, size, status } = attempts[next++ % attempts.length];
    let reason = '';
    try {
      const response = await fetch(base + path, {
        method: 'POST',
        body: body.subarray(0, size),
        signal: AbortSignal.timeout(60_000),
      });
      await response.text();
      if (response.status !== status) reason = `${response.status} instead of ${status}`;
    } catch (error) {
      reason = error.cause?.code ?? error.cause?.message ?? error.name;
    }
    if (reason !== '') {
      lost += 1;
      const failure = `${reason} (${path}, ${size / 1000} kB)`;
      reasons.set(failure, (reasons.get(failure) ?? 0) + 1);
    }
  }
}

await Promise.all(Array.from({ length: 8 }, client));
const summary = [...reasons].map(([reason, count]) => `${count} x ${reason}`);
console.log(`${tries} ${lost} ${summary.join('; ')}`.trim());
process.exit(0);
