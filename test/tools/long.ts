/**
 * The files of tap that only `npm run test:all` runs: they take long or need much of other programs, and what the contract
 * and the API promise is in other files too (test/contract/numbers.test.ts).
 */
const LONG = [
  /^test\/(?:clients|faults)\//,
  /^test\/imdsd\/(addresses|ansible|bodies|compose|conditions|deploy|doctor|documented-failures|environment|examples|files-writers|firewall-counters|firewall-hops|firewall-keeping|firewall-responses|firewall-table|firewall-traffic|fuzz|image|installation|networks|outputs|packages|pretenuring|region-in-an-hour|release|reports|status-page|systemd|systemd-kill|systemd-restart|waiting)\./,
  /^test\/imds-api\/(affected|audit|compute-access|conditions|dashboards|database|demo|docs|docs-pages|doctor|fleet-commands|idempotency-cut|large|openapi|plans|properties|publisher-world|restored|systemd)\./,
  /^test\/redis\/(fleet-changes|long-values|misplaced|odd-replies|order|probe|put-many|shapes-\w+|slow-store|unusable-store|watch)\./,
]

export function isLong(file: string): boolean {
  return LONG.some((long) => long.test(file))
}
