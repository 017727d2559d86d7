/** What a region offers: zones, server types and images, as lists and as members. */
import t from 'tap'
import { anApi, BASE_URL } from '../support/programs/api.ts'

const api = await anApi(t)

t.test('zones are listed by their handle, and each is found by its id and its handle', async (t) => {
  const zone = (id: string, handle: string) => ({ id, resource_type: 'zone', url: `${BASE_URL}/1.0/zones/${id}`, handle })
  const [a, b] = [zone('zon-aaaa1', 'gb1-a'), zone('zon-bbbb2', 'gb1-b')]
  t.strictSame((await api.call('GET', '/1.0/zones')).body, [a, b])
  for (const name of [b.id, b.handle]) t.match(await api.call('GET', `/1.0/zones/${name}`), { status: 200, body: b })
})
