import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { logLevel } from '../../../src/imdsctl/log-level.ts'
import { EXIT } from '../../../src/runtime/exit-status.ts'
import { Output } from '../../../src/runtime/output.ts'

const output = new Output('imdsctl', new PassThrough(), new PassThrough(), () => undefined)

test.each<[string | undefined, string | undefined, RegExp]>([
  ['verbose', undefined, /^"verbose" is not a level: fatal, error, warn, info, debug$/],
  ['debug', '2d', /^"2d" is not a time of at most a day, such as 30s, 10m or 2h$/],
  ['debug', '25h', /^"25h" is not a time of at most a day/],
  [undefined, '10m', /^--for is for a level/],
])('level %s for %s is wrong usage, and the daemon is not asked', async (level, duration, message) => {
  const options = { operator: 'unix:/nowhere', ...(duration !== undefined && { for: duration }) }
  await expect(logLevel(output, level, options)).rejects.toMatchObject({
    status: EXIT.usage,
    message: expect.stringMatching(message) as string,
  })
})
