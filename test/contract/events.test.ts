/** H8 of the contract: maintenance events in EC2's JSON. */
import { expect, test } from 'vitest'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'

const REBOOT = {
  id: 'evt-1',
  code: 'system-reboot',
  notBefore: '2019-01-21T10:00:43+01:00',
  notAfter: '2019-01-21T09:17:23Z',
  description: 'scheduled reboot',
}

/** The bytes of both leaves for an instance with these events. */
async function maintenanceOf(events: readonly object[]): Promise<{ scheduled: string; history: string }> {
  const { put, ask } = aGuestServer()
  put(anInstance({ events }))
  const text = async (name: string) => (await ask(`/latest/meta-data/events/maintenance/${name}`)).text
  return { scheduled: await text('scheduled'), history: await text('history') }
}

test('H8: an active event is in scheduled, with the fields, order and times of EC2', async () => {
  expect(await maintenanceOf([REBOOT])).toEqual({
    scheduled:
      '[{"NotBefore":"21 Jan 2019 09:00:43 GMT","Code":"system-reboot","Description":"scheduled reboot",' +
      '"EventId":"evt-1","NotAfter":"21 Jan 2019 09:17:23 GMT","State":"active"}]',
    history: '[]',
  })
})

test('H8: completed and canceled events are in history, with their state before the description', async () => {
  const { scheduled, history } = await maintenanceOf([
    { ...REBOOT, state: 'completed', notAfter: undefined },
    { ...REBOOT, id: 'evt-2', state: 'canceled' },
  ])
  expect(scheduled).toBe('[]')
  expect(JSON.parse(history)).toEqual([
    {
      NotBefore: '21 Jan 2019 09:00:43 GMT',
      Code: 'system-reboot',
      Description: '[Completed] scheduled reboot',
      EventId: 'evt-1',
      State: 'completed',
    },
    {
      NotBefore: '21 Jan 2019 09:00:43 GMT',
      Code: 'system-reboot',
      Description: '[Canceled] scheduled reboot',
      EventId: 'evt-2',
      NotAfter: '21 Jan 2019 09:17:23 GMT',
      State: 'canceled',
    },
  ])
})
