// Opens what cannot be opened, one of each line of the input, `[url, conversation]`; writes what each throws.
// `node javascript_misuse.mjs MODULE`

import { readFileSync } from "node:fs";

const { connect } = await import(process.argv[2]);
for (const line of readFileSync(0, "utf-8").trim().split("\n")) {
  try {
    connect(...JSON.parse(line)).close();
    console.log("opened");
  } catch (error) {
    console.log(error.message);
  }
}
