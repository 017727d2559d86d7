import { EventEmitter } from 'node:events'
import { expect, test } from 'vitest'
import { isAcceptedVersion, refuseOtherVersions } from '../../../src/runtime/http-version.ts'

/** What Node's parser can report: llhttp rejects every other version itself. */
const VERSIONS: readonly [string, boolean][] = [
  ['1.0', true],
  ['1.1', true],
  ['0.9', false],
  ['2.0', false],
]

test.each(VERSIONS)('HTTP/%s is accepted: %s', (version, isAccepted) => {
  expect(isAcceptedVersion(version)).toBe(isAccepted)
})

test.each(VERSIONS)('HTTP/%s reaches the listeners of the server: %s', (httpVersion, isAccepted) => {
  const server = new EventEmitter()
  const [served, sent, counted]: [unknown[], unknown[], unknown[]] = [[], [], []]
  server.on('request', (request: unknown) => served.push(request))
  refuseOtherVersions(
    server as never,
    () => ({ contentType: 'text/plain', body: 'é' }),
    () => counted.push(1),
  )
  const end = (body: string) => sent.push(body)
  const writeHead = (...head: unknown[]) => {
    sent.push(...head)
    return { end }
  }
  server.emit('request', { httpVersion }, { writeHead })
  expect(served).toEqual(isAccepted ? [{ httpVersion }] : [])
  expect(sent).toEqual(
    isAccepted ? [] : [400, { 'Content-Type': 'text/plain', 'Content-Length': 2, Connection: 'close' }, 'é'],
  )
  expect(counted).toHaveLength(isAccepted ? 0 : 1)
})
