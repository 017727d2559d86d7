/**
 * A client that reads all that it is told of, as cloud-init does: listing by listing, name by name.
 */
import type { Answer } from './daemon.ts'

/** Gives every answer of the tree below `/VERSION/`, by path, in the order in which it was asked for. */
export async function crawl(version: string, get: (path: string) => Promise<Answer>): Promise<Map<string, Answer>> {
  const answers = new Map<string, Answer>()
  const visit = async (path: string): Promise<string[]> => {
    const answer = await get(path)
    answers.set(path, answer)
    return answer.status === 200 && path.endsWith('/') ? answer.body.toString().split('\n').filter((name) => name !== '').map((name) => path + placeOf(path, name)) : []
  }
  const root = `/${version}/`
  const todo = [root]
  for (let path = todo.shift(); path !== undefined; path = todo.shift()) todo.push(...await visit(path))
  return answers
}

/** What to ask for where a listing says `name`: a version's root lists its directories bare, and keys stand behind their numbers. */
function placeOf(directory: string, name: string): string {
  if (name === 'meta-data' || name === 'dynamic') return `${name}/`
  return directory.endsWith('/public-keys/') ? `${name.replace(/=.*$/, '')}/` : name
}
