/**
 * The tests that may kill a mutant: those of its room, in the order in which mutate.ts names them. Left out: tests with
 * random input.
 */
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

const patterns = (process.env['MUTATE_TESTS'] ?? '').split(',')

/** vitest would run the slowest file first; a mutant is done with at the first test that fails. */
class InOrder extends BaseSequencer {
  override sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) =>
      patterns.findIndex((pattern) => moduleId.includes(pattern.split('*', 1)[0]!))
    return Promise.resolve(files.toSorted((a, b) => place(a) - place(b)))
  }
}

const config = defineConfig({
  test: {
    include: patterns,
    exclude: ['**/*-fuzz.test.ts'],
    testTimeout: 40_000,
    isolate: false,
    sequence: { sequencer: InOrder },
  },
})

export { config as default }
