// Takes docs/serve.png from a running `svtool serve` of the embedded model:
//   npm install --no-save playwright-core   (in this folder; uses the Chromium of the system)
//   node shoot.mjs http://127.0.0.1:7860 ../../docs/serve.png [example] [width] [light|dark]
import { chromium } from "playwright-core";

const [url, file, example = "Digits", width = "1280", colorScheme = "light"] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"],
});
const narrow = Number(width) < 640;
const page = await browser.newPage({ viewport: { width: Number(width), height: narrow ? 844 : 740 }, colorScheme });
page.on("request", (request) => {
  if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(url)) console.log("outside:", request.url());
});
page.on("pageerror", (error) => console.log("page error:", error.message));
await page.goto(url);
await page.waitForSelector("#sv-audio");
await page.getByRole("button", { name: example }).click();
await page.waitForSelector(".sv-result");
await page.waitForTimeout(2500); // the waveform is drawn after the text has come
await page.mouse.move(0, 0);
await page.screenshot({ path: file, fullPage: narrow });
console.log(await page.locator(".sv-text").innerText());
await browser.close();
