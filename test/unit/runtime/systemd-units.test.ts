import { expect, test } from 'vitest'
import { askSockets, parseShown, type AskSystemd } from '../../../src/runtime/systemd-units.ts'

test('the properties of each unit are parsed, also those with several lines and with a sign of equality', () => {
  expect(
    parseShown('Id=a.socket\nListen=1.2.3.4:80 (Stream)\nListen=[::1]:80 (Stream)\n\nId=b\nEnvironment=A=1\n'),
  ).toEqual([
    new Map([
      ['Id', ['a.socket']],
      ['Listen', ['1.2.3.4:80 (Stream)', '[::1]:80 (Stream)']],
    ]),
    new Map([
      ['Id', ['b']],
      ['Environment', ['A=1']],
    ]),
  ])
})

/** Sockets as systemd shows them: each with its network, address, and the states of its file and of itself. */
const asked =
  (
    ...sockets: readonly (readonly [id: string, network: string, listen: string, file: string, active: string])[]
  ): AskSystemd =>
  (units) =>
    parseShown(
      units[0] === 'imds.service'
        ? `TriggeredBy=${sockets.map(([id]) => id).join(' ')}\n`
        : sockets
            .map(
              ([id, network, listen, file, active]) =>
                `Id=${id}\nFileDescriptorName=${network}\nListen=${listen} (Stream)\nUnitFileState=${file}\nActiveState=${active}\n`,
            )
            .join('\n'),
    )

test('the sockets of a service are enabled or open; imds.socket makes way for those of networks', () => {
  const socket = ['imds.socket', 'default', '169.254.169.254:80', 'enabled', 'inactive'] as const
  const red = ['imds-network@red.socket', 'red', '[fd00:ec2::254]:80', 'disabled', 'active'] as const
  const blue = ['imds-network@blue.socket', 'blue', '10.0.0.1:80', 'disabled', 'inactive'] as const
  expect(askSockets('imds.service', asked(socket, blue))).toEqual([
    { network: 'default', host: '169.254.169.254', port: 80 },
  ])
  expect(askSockets('imds.service', asked(socket, red, blue))).toEqual([
    { network: 'red', host: 'fd00:ec2::254', port: 80 },
  ])
  expect(askSockets('imds.service', asked())).toEqual([])
  expect(askSockets('imds.service', () => undefined)).toBeUndefined()
})
