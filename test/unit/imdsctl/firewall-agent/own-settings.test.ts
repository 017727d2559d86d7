import { expect, test } from 'vitest'
import { findContradiction } from '../../../../src/imdsctl/firewall-agent/own-settings.ts'

const LISTENER = { network: 'default', address: '169.254.169.254', port: 80 }
const DOCUMENT = { listeners: [LISTENER], operator: { address: '127.0.0.1', port: 9169 }, link: 'tap-{interfaceId}' }

test('the defaults of the daemon agree with those of the agent; an empty variable is not set', () => {
  expect(findContradiction(DOCUMENT, {})).toBeUndefined()
  expect(findContradiction(DOCUMENT, { IMDS_LISTEN: ' ', IMDS_OPERATOR_LISTEN: '', IMDS_LINK: '' })).toBeUndefined()
})

test('addresses are compared, whatever their notation and their network', () => {
  const six = { network: 'red', address: 'fd00:ec2::254', port: 80 }
  expect(
    findContradiction(
      { ...DOCUMENT, listeners: [LISTENER, six] },
      { IMDS_LISTEN: 'blue=169.254.169.254:80, [FD00:ec2:0::254]:80' },
    ),
  ).toBeUndefined()
  expect(findContradiction({ ...DOCUMENT, listeners: [] }, {})).toBeUndefined()
  expect(
    findContradiction({ ...DOCUMENT, operator: { address: '::1', port: 9 } }, { IMDS_OPERATOR_LISTEN: '[0::1]:9' }),
  ).toBeUndefined()
})

const listening = (change: object) => ({ listeners: [{ ...LISTENER, ...change }] })
test.each<[object, object, string]>([
  [
    { listeners: [LISTENER, { ...LISTENER, address: '10.77.0.1' }] },
    {},
    'the listener 10.77.0.1:80, and IMDS_LISTEN of # is 169.254.169.254:80',
  ],
  [listening({ port: 22 }), {}, 'the listener 169.254.169.254:22, and'],
  [listening({ address: '169.254.169.254 ' }), {}, 'and IMDS_LISTEN'],
  [listening({ port: 22 }), { IMDS_LISTEN: '169.254.169.254:0' }, 'the listener 169.254.169.254:22'],
  [
    { operator: { address: '127.0.0.1', port: 22 } },
    {},
    "the operators' listener 127.0.0.1:22, and IMDS_OPERATOR_LISTEN of # is 127.0.0.1:9169",
  ],
  [{}, { IMDS_OPERATOR_LISTEN: 'x' }, 'and IMDS_OPERATOR_LISTEN of # is x'],
  [{ link: 'eth0' }, {}, 'the link rule eth0, and IMDS_LINK of # is tap-{interfaceId}'],
])('a document with %j contradicts %j, and the message names the remedy', (change, own, message) => {
  const contradiction = findContradiction({ ...DOCUMENT, ...change }, own)
  expect(contradiction).toContain(message.replace('#', 'the firewall agent'))
  expect(contradiction).toContain('/etc/imds/imds.env')
})
