import { expect, test } from 'vitest'
import { faultOfServerUrl } from '../../../../src/imds-api/database/settings.ts'

test.each(['postgres://u@h/d', 'postgres://u@/d?host=/run/pg', 'postgresql://u@[::1]:1/d?sslmode=disable'])(
  '%s names a server',
  (text) => expect(faultOfServerUrl(text)).toBeUndefined(),
)
