// A page in a headless Chromium, whose path is CHROMIUM: `browser.mjs BASE`, with playwright-core
// in NODE_PATH. The page's title has the number of steps and how many of them failed.

import { createRequire } from 'node:module';

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)('playwright-core');
const args = ['--no-sandbox', '--disable-gpu'];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args });
try {
  const page = await browser.newPage({ ignoreHTTPSErrors: true });
  await page.goto(`${process.argv[2]}/page`);
  await page.waitForFunction(() => /^[0-9]+ [0-9]+/.test(document.title), null, {
    timeout: 60_000,
  });
  console.log(await page.title());
} catch (error) {
  console.log(`0 1 ${error.message.split('\n')[0]}`);
}
await browser.close();
