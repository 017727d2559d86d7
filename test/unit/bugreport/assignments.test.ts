import { expect, test } from 'vitest'
import { redactLines, redactUnits } from '../../../src/bugreport/assignments.ts'
import { publicVariables } from '../../../src/bugreport/secrets.ts'
import { VARIABLES } from '../../../src/imdsd/config.ts'

const isPublic = publicVariables(VARIABLES)
const REMOVED = '[removed]'
const service = (...lines: string[]) => redactUnits(['[Service]', ...lines].join('\n'), isPublic)

test.each([
  ['Environment=IMDS_REGION=gb1', 'Environment=IMDS_REGION=gb1'],
  ['Environment="IMDS_REGION=gb1" NODE_ENV=production', 'Environment="IMDS_REGION=gb1" NODE_ENV=production'],
  ['Environment=IMDS_REGION=gb1 PIN=1234', `Environment=IMDS_REGION=gb1 ${REMOVED}`],
  ['Environment="PIN=12 34" IMDS_REGION=gb1', `Environment=${REMOVED}`],
  ["Environment=PIN='12 34'", `Environment=${REMOVED}`],
  ['Environment = PIN = 1234', `Environment = ${REMOVED}`],
  ['Environment=constructor=1234', `Environment=${REMOVED}`],
  ['Environment=IMDS_REDIS_PASSWORD_FILE=hunter2', `Environment=${REMOVED}`],
  ['Environment=IMDS_REDIS_PASSWORD_FILE=%d/password', 'Environment=IMDS_REDIS_PASSWORD_FILE=%d/password'],
  [
    'Environment=IMDS_REDIS_PASSWORD_FILE=/etc/imds/password',
    'Environment=IMDS_REDIS_PASSWORD_FILE=/etc/imds/password',
  ],
  ['UnsetEnvironment=PIN=1234', `UnsetEnvironment=PIN=${REMOVED}`],
  ['PassEnvironment=PIN', 'PassEnvironment=PIN'],
  ['SetCredential=pin:1234', REMOVED],
  ['SetCredentialEncrypted=pin: \\\n  k6iUCUh0RJCQ \\\n  1234', REMOVED],
  ['LoadCredential=password:/etc/imds/password', 'LoadCredential=password:/etc/imds/password'],
  ['EnvironmentFile=-/etc/imds/imds.env', 'EnvironmentFile=-/etc/imds/imds.env'],
  ['ExecStart=/usr/bin/env PIN=1234 /opt/imds/bin/node main.js', `ExecStart=/usr/bin/env PIN=${REMOVED}`],
  ["ExecStartPre=/bin/sh -c 'export PIN=1234; true'", `ExecStartPre=/bin/sh -c 'export PIN=${REMOVED}`],
  [
    'ExecStart=/opt/imds/bin/node --max-old-space-size=256 x.js',
    'ExecStart=/opt/imds/bin/node --max-old-space-size=256 x.js',
  ],
  ['ExecStart=/opt/imds/bin/node --pin=1234', `ExecStart=/opt/imds/bin/node --pin=${REMOVED}`],
  ['PIN=1234', REMOVED],
  ['export PIN=1234', REMOVED],
  ['1234', REMOVED],
  ['LimitNOFILE=65536', 'LimitNOFILE=65536'],
])('of a line of a unit only public values stay: %s', (text, expected) => {
  expect(service(text)).toBe(`[Service]\n${expected}`)
})

test('comments are removed from units, also between the lines of one setting', () => {
  expect(
    redactUnits(
      [
        '# /etc/systemd/system/imds.service.d/local.conf',
        '# Environment=PIN=1234',
        '; PIN=1234',
        '[Service]',
        'Environment=IMDS_REGION=gb1 \\',
        '# PIN=1234',
        '  PIN=1234 \\',
        '  IMDS_HYPERVISOR=hv1',
        'User=imds',
      ].join('\n'),
      isPublic,
    ),
  ).toBe(
    [
      '# /etc/systemd/system/imds.service.d/local.conf',
      '[Service]',
      `Environment=IMDS_REGION=gb1 ${REMOVED}`,
      'User=imds',
    ].join('\n'),
  )
})

test.each([
  ['Process: 12 ExecStart=/usr/bin/env PIN=1234 x (code=exited)', `Process: 12 ExecStart=${REMOVED}`],
  ['├─12 /usr/bin/env PIN=1234 node', `├─12 /usr/bin/env PIN=${REMOVED}`],
  [
    "imds.service: Ignoring invalid environment assignment 'export PIN=1234': x",
    `imds.service: Ignoring invalid environment assignment '${REMOVED}`,
  ],
  [
    'local.conf:3: Invalid environment assignment, ignoring: 1234',
    `local.conf:3: Invalid environment assignment, ignoring: ${REMOVED}`,
  ],
  ['{"msg":"started with PIN=1234"}', `{"msg":"started with PIN=${REMOVED}`],
  ['imds.service: Main process exited, code=exited, status=78/CONFIG', undefined],
  ['Main PID: 12 (code=killed, signal=KILL)', undefined],
  ['├─12 /opt/imds/bin/node --max-semi-space-size=2 /opt/imds/main.js', undefined],
  ['{"level":40,"msg":"IMDS_FIREWALL=required needs the agent"}', undefined],
])('in the journal and the status only public values stay: %s', (text, expected) => {
  expect(redactLines(text, isPublic)).toBe(expected ?? text)
})
