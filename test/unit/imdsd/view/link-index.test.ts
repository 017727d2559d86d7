import { expect, test } from 'vitest'
import { LinkIndex } from '../../../../src/imdsd/view/link-index.ts'
import type { ServedInstance } from '../../../../src/imdsd/view/served-instance.ts'

/** An index, and a function that sets or removes an instance by the ids of its interfaces: `int-a` or `red/int-a`. */
function anIndex() {
  const served = new Map<string, ServedInstance>()
  const ranks = new Map<string, number>()
  const index = new LinkIndex({ get: (id) => served.get(id), rankOf: (id) => ranks.get(id) ?? Infinity }, ({ id }) =>
    id.length > 9 ? undefined : `tap${id.slice(0, 5)}`,
  )
  const set = (instance: string, ...ids: readonly string[]) => {
    const interfaces = ids.map((text) => {
      const [id = '', network = 'default'] = text.split('/').reverse()
      return { id, network }
    })
    if (ids.length === 0) served.delete(instance)
    else served.set(instance, { instance: { id: instance, interfaces } } as unknown as ServedInstance)
    index.update(instance)
  }
  const find = (link: string, network = 'default') => {
    const found = index.find(network, link)
    return found.kind === 'owned' ? found.owner.instance.id : found.kind
  }
  /** The store no longer has an instance. */
  const lose = (instance: string) => {
    ranks.set(instance, ranks.size + 1)
    index.update(instance)
  }
  return { set, find, lose }
}

test('E1: a link belongs to the instance with its interface, on the network of that interface only', () => {
  const { set, find } = anIndex()
  set('srv-a', 'int-1', 'red/int-2')
  expect([find('tapint-1'), find('tapint-1', 'red'), find('tapint-2'), find('tapint-2', 'red')]).toEqual([
    'srv-a',
    'unknown',
    'unknown',
    'srv-a',
  ])
  expect([find('tapint'), find('')]).toEqual(['unknown', 'unknown'])
})

test('E1, E3: a link that an interface leaves is unknown until another instance has it', () => {
  const { set, find } = anIndex()
  set('srv-a', 'int-1')
  set('srv-a', 'int-2')
  expect([find('tapint-1'), find('tapint-2')]).toEqual(['unknown', 'srv-a'])
  set('srv-a')
  expect(find('tapint-2')).toBe('unknown')
  set('srv-b', 'int-2')
  expect(find('tapint-2')).toBe('srv-b')
})

test('invariant 7: a link that two interfaces would have is served to neither, until only one is left', () => {
  const { set, find } = anIndex()
  set('srv-a', 'int-1x')
  set('srv-b', 'red/int-1y')
  expect([find('tapint-1'), find('tapint-1', 'red')]).toEqual(['contested', 'contested'])
  set('srv-a', 'int-1x')
  expect(find('tapint-1')).toBe('contested')
  set('srv-a')
  expect(find('tapint-1', 'red')).toBe('srv-b')
  set('srv-b', 'int-3x', 'int-3y')
  expect(find('tapint-3')).toBe('contested')
  set('srv-b')
  expect(find('tapint-3')).toBe('unknown')
})

test('invariant 7: a link is served to the instance that the store has, or lost last', () => {
  const { set, find, lose } = anIndex()
  set('srv-a', 'int-1x')
  lose('srv-a')
  expect(find('tapint-1')).toBe('srv-a')
  set('srv-b', 'int-1y')
  expect(find('tapint-1')).toBe('srv-b')
  lose('srv-b')
  expect(find('tapint-1')).toBe('srv-b')
})

test('an interface without a possible link name has no link', () => {
  const { set, find } = anIndex()
  set('srv-a', 'int-toolong')
  expect(find('tapint-t')).toBe('unknown')
})
