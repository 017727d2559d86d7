import { expect, test } from 'vitest'
import { purgeEach } from '../../../../src/imds-api/database/purge.ts'

test('purges run one after another, also after one that fails, and the first failure is reported', async () => {
  const ran: string[] = []
  const purge = (name: string, fails: boolean) => async () => {
    ran.push(`${name} begins`)
    await Promise.resolve()
    ran.push(`${name} ends`)
    if (fails) throw new Error(name)
  }
  await purgeEach([purge('a', false)])
  ran.length = 0
  await expect(purgeEach([purge('a', true), purge('b', true), purge('c', false)])).rejects.toThrow(/^a$/)
  expect(ran).toEqual(['a', 'b', 'c'].flatMap((name) => [`${name} begins`, `${name} ends`]))
})
