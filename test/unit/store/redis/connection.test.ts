import { expect, test } from 'vitest'
import { connectTo } from '../../../../src/store/redis/connection.ts'

test('a user without a password, and a file that cannot be read, are reported before anything connects', async () => {
  const node = { host: '127.0.0.1', port: 1 }
  await expect(connectTo({ url: 'redis://imds-hv1@127.0.0.1:1' }, node, 'x')).rejects.toThrow(
    'names the user imds-hv1, and there is no password: name its file in IMDS_REDIS_PASSWORD_FILE',
  )
  await expect(connectTo({ url: 'rediss://127.0.0.1:1', caFile: '/none.pem' }, node, 'x')).rejects.toThrow(
    '/none.pem cannot be read: ENOENT',
  )
})
